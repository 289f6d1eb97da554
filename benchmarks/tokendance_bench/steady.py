"""Hundreds of rounds of new text at fixed budgets: do hit rate, memory and latency stay what they are?

A tiny random model, a KV space and a store that hold a few rounds only, contexts that keep the last round's blocks;
every `--rounds-per-session` rounds the session ends and a new one begins, so masters, mirrors and names turn over
all the time. Rounds 50 to 100 (the first ones fill the budgets) against the last 50.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, parser, positive
from tokendance_bench.run import Run

WINDOW = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("steady", __doc__ or "", "none", 3)
    options.set_defaults(model="tiny", block_tokens=96, history_tokens=128, kv_gib=1)
    options.add_argument("--rounds", type=positive, default=500)
    options.add_argument("--rounds-per-session", type=positive, default=10)
    options.add_argument("--answer-tokens", type=positive, default=4)
    options.add_argument("--store-mib", type=positive, default=16, help="budget of the store")
    args = options.parse_args(argv)
    if args.rounds < 3 * WINDOW:
        options.error(f"--rounds {args.rounds}; allowed: at least {3 * WINDOW}")
    engine = Engine(
        model_of(args),
        kv_gib=args.kv_gib,
        dtype=args.dtype,
        max_model_len=2048,
        max_num_seqs=16,
        num_gpu_blocks_override=160,
        tokendance={"cpu_bytes": args.store_mib << 20},
    )
    with Run("steady", args.out, headline, about(args), args.rounds) as run:
        run.doing(f"{args.rounds} rounds")
        for row in play(engine, args):
            run.add(row, quiet=row["round"] % WINDOW != 0)
    return 0


def play(engine: Engine, args: Any) -> Iterator[dict[str, Any]]:
    """All rounds, a row each; at the end engine and store check their own integrity.

    `ms` is from submission to the last answer, `cpu_ms` what this process's main thread computed meanwhile: on a busy
    machine the steadier one.

    Raises:
        AssertionError: pages, masters or stored rows are not what they should be.
    """
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    store = get_kv_transfer_group().worker.mirrors.store
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    histories: list[list[int]] = []
    for number in range(args.rounds):
        session, turn = divmod(number, args.rounds_per_session)
        if turn == 0:
            histories = [text(args.history_tokens) for _ in range(args.agents)]
        blocks, end = [text(args.block_tokens) for _ in range(args.agents)], text(16)
        prompts = [_prompt(f"a{i}", history, blocks, end) for i, history in enumerate(histories)]
        how = {"round_id": f"s{session}:{turn}", "fidelity": "fast"}
        started = time.thread_time()
        got = engine.round(prompts, how, max_tokens=args.answer_tokens)
        seconds = time.thread_time() - started
        histories = [h + text(16) for h in histories]  # what an agent keeps of a round
        reports = [r for r in got.reports if r is not None]
        hits = sum(r["cached_tokens"] + r["reused_tokens"] for r in reports)
        yield {
            "round": number,
            "hit_rate": round(hits / sum(len(p.tokens) for p in prompts), 4),
            "restored_tokens": sum(r["restored_tokens"] for r in reports),
            "rss_mb": round(_rss() / 1e6, 1),
            "stored_mb": round(store.report().used / 1e6, 2),
            "ms": round(got.seconds * 1e3, 1),
            "cpu_ms": round(seconds * 1e3, 1),
            "objects": len(gc.get_objects()) if number % WINDOW == 0 else None,
        }
    engine.drain()
    engine.scheduler.check()
    store.check()


def _prompt(agent: str, history: list[int], blocks: Sequence[list[int]], end: list[int]) -> Prompt:
    tokens, boundaries = list(history), []
    for block in blocks:
        boundaries.append(len(tokens))
        tokens += block
    return Prompt(agent, tokens + end, [*boundaries, len(tokens)])


def _rss() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the last rounds over those of rounds 50 to 100; nothing before there are two windows apart."""
    if len(rows) < 3 * WINDOW:
        return {}
    first, last = rows[WINDOW : 2 * WINDOW], rows[-WINDOW:]

    def over(name: str) -> float:
        early, late = (statistics.median(row[name] for row in part) for part in (first, last))
        return round(float(late / early), 4) if early else 1.0 if late == early else float("inf")

    rss, stored = over("rss_mb"), over("stored_mb")
    return {
        "hit_rate_last_over_first": over("hit_rate"),
        "memory_last_over_first": max(rss, stored),
        "rss_last_over_first": rss,
        "stored_last_over_first": stored,
        "latency_last_over_first": over("ms"),
        "cpu_last_over_first": over("cpu_ms"),
        "rounds": len(rows),
    }


if __name__ == "__main__":
    raise SystemExit(main())
