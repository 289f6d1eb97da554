"""Hundreds of rounds of new text at fixed budgets: do hit rate, memory and latency stay what they are?

A tiny random model, a KV space and a store that hold a few rounds only, contexts that keep the last round's blocks;
every `--rounds-per-session` rounds the session ends and a new one begins, so masters, mirrors and names turn over
all the time. Rounds 50 to 100 (the first ones fill the budgets) against the last 50.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import parser
from tokendance_bench.results import print_rows, write_results
from tokendance_bench.tiny import tiny_model

WINDOW = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("steady", __doc__ or "", "none", 3)
    options.set_defaults(block_tokens=96, history_tokens=128, kv_gib=1)
    options.add_argument("--rounds", type=int, default=500)
    options.add_argument("--rounds-per-session", type=int, default=10)
    options.add_argument("--answer-tokens", type=int, default=4)
    options.add_argument("--store-mib", type=int, default=16, help="budget of the store")
    args = options.parse_args(argv)
    if args.rounds < 3 * WINDOW:
        options.error(f"--rounds {args.rounds}; allowed: at least {3 * WINDOW}")
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(
            args.model or tiny_model(Path(folder) / "tiny"),
            kv_gib=args.kv_gib,
            dtype=args.dtype,
            max_model_len=2048,
            max_num_seqs=16,
            num_gpu_blocks_override=160,
            tokendance={"cpu_bytes": args.store_mib << 20},
        )
        rows = play(engine, args)
    headline = headline_of(rows)
    every = rows[:: max(1, args.rounds // 50)]
    path = write_results(
        args.out,
        headline,
        every,
        environment(model=args.model or "tiny random llama", dtype=args.dtype, seed=0),
    )
    print_rows("steady", every[::5])
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def play(engine: Engine, args: Any) -> list[dict[str, Any]]:
    """All rounds; a row each."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    store = get_kv_transfer_group().worker.mirrors.store
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    rows: list[dict[str, Any]] = []
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
        rows.append(
            {
                "round": number,
                "hit_rate": round(hits / sum(len(p.tokens) for p in prompts), 4),
                "restored_tokens": sum(r["restored_tokens"] for r in reports),
                "rss_mb": round(_rss() / 1e6, 1),
                "stored_mb": round(store.report().used / 1e6, 2),
                "ms": round(got.seconds * 1e3, 1),
                "cpu_ms": round(seconds * 1e3, 1),
                "objects": len(gc.get_objects()) if number % WINDOW == 0 else None,
            }
        )
    engine.drain()
    engine.scheduler.check()
    store.check()
    return rows


def _prompt(agent: str, history: list[int], blocks: Sequence[list[int]], end: list[int]) -> Prompt:
    tokens, boundaries = list(history), []
    for block in blocks:
        boundaries.append(len(tokens))
        tokens += block
    return Prompt(agent, tokens + end, [*boundaries, len(tokens)])


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def headline_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the last rounds over those of rounds 50 to 100."""
    first, last = rows[WINDOW : 2 * WINDOW], rows[-WINDOW:]

    def over(name: str, digits: int = 3) -> float:
        early, late = (statistics.median(row[name] for row in part) for part in (first, last))
        return round(float(late / early), digits)

    return {
        "hit_rate_last_over_first": over("hit_rate"),
        "memory_last_over_first": max(over("rss_mb"), over("stored_mb")),
        "rss_last_over_first": over("rss_mb", 4),
        "stored_last_over_first": over("stored_mb"),
        "latency_last_over_first": over("ms"),
        "cpu_last_over_first": over("cpu_ms"),
        "rounds": len(rows),
    }


if __name__ == "__main__":
    raise SystemExit(main())
