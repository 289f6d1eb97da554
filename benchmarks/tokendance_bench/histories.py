"""Rounds whose histories vLLM's prefix cache cannot keep: computed again, or brought back from the store.

Every agent keeps all it has read and said; a round gives each of them the outputs of all. The KV space holds `--fits`
contexts of the last round, so plain vLLM computes most histories again in every round. Random tokens; each system in
an engine of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokendance_bench import children
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, parser, positive
from tokendance_bench.run import Run, append_row
from tokendance_bench.tokenizing import context_of

PAGE = 32
SYSTEMS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "vllm": (None, False),
    "tokendance-balanced": ({"fidelity": "balanced"}, False),
    "stored-fast": ({"fidelity": "fast"}, True),
    "stored-balanced": ({"fidelity": "balanced"}, True),
    "stored-exact": ({"fidelity": "exact"}, True),
}
"""Name -> (tag of the requests, whether histories are stored)."""
QUICK = ("vllm", "tokendance-balanced", "stored-balanced")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("histories", __doc__ or "", "none", 10, ("--agents 4 --rounds 5",))
    options.set_defaults(block_tokens=40, history_tokens=600)
    options.add_argument("--rounds", type=positive, default=3, help="the first one is not counted")
    options.add_argument("--answer-tokens", type=positive, default=8, help="tokens every agent generates")
    options.add_argument("--fits", type=positive, default=3, help="contexts that the KV space holds")
    options.add_argument("--systems", nargs="+", choices=SYSTEMS, help="default: all")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    args.systems = args.systems or list(QUICK if args.quick else SYSTEMS)
    if args.child:
        return _child(args)
    given = list(argv if argv is not None else sys.argv[1:])
    with Run("histories", args.out, headline, about(args), len(args.systems) * args.rounds) as run:
        for system in args.systems:
            run.doing(system)
            arguments, log = [*given, "--systems", system], args.out / f"{system}.log"
            for row in children.rows_of("tokendance_bench.histories", arguments, log):
                run.add(row)
    return 0


def _child(args: Any) -> int:
    (system,) = args.systems
    tag, stored = SYSTEMS[system]
    longest = args.history_tokens + args.rounds * (args.agents * args.block_tokens + args.answer_tokens + 16)
    pages = args.fits * -(-longest // PAGE) + 1
    engine = Engine(
        model_of(args),
        kv_gib=args.kv_gib,
        dtype=args.dtype,
        block_size=PAGE,
        max_num_seqs=64,
        max_model_len=min(context_of(model_of(args)), (pages - 1) * PAGE),
        num_gpu_blocks_override=pages,
        tokendance={"cpu_bytes": 8 << 30} if stored else {},
    )
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    contexts = [Prompt(f"a{i}", text(args.history_tokens), []) for i in range(args.agents)]
    for number in range(1, args.rounds + 1):
        blocks, end = [text(args.block_tokens) for _ in range(args.agents)], text(16)
        prompts = [_with(context, blocks, end) for context in contexts]
        how = None if tag is None else {"round_id": f"s:{number}", **tag}
        got = engine.round(prompts, how, max_tokens=args.answer_tokens)
        contexts = [
            Prompt(p.agent, p.tokens + answer, p.boundaries)
            for p, answer in zip(prompts, got.tokens, strict=True)
        ]
        row = {"system": system, "round": number, "seconds": round(got.seconds, 3)}
        append_row(args.out / children.ROWS, row | _sums(prompts, got.reports))
    return 0


def _with(context: Prompt, blocks: Sequence[list[int]], end: list[int]) -> Prompt:
    tokens, boundaries = list(context.tokens), list(context.boundaries)
    for block in blocks:
        boundaries.append(len(tokens))
        tokens += block
    return Prompt(context.agent, tokens + end, [*boundaries, len(tokens)])


def _sums(prompts: Sequence[Prompt], reports: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    names = ("cached_tokens", "restored_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
    sums = {name: sum(r[name] for r in reports if r is not None) for name in names}
    reasons = sorted({str(r["fallback_reason"]) for r in reports if r is not None})
    return {"prompt_tokens": sum(len(p.tokens) for p in prompts), **sums, "reasons": ", ".join(reasons)}


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds of the rounds after the first, and how many times faster than plain vLLM."""
    taken: dict[str, list[float]] = {}
    for row in rows:
        if row["round"] > 1:
            taken.setdefault(row["system"], []).append(row["seconds"])
    means = {name: float(np.mean(seconds)) for name, seconds in taken.items()}
    found = {f"seconds_{name.replace('-', '_')}": round(mean, 3) for name, mean in means.items()}
    if "vllm" in means:
        for name, mean in means.items():
            if name != "vllm":
                found[f"speedup_vs_vllm_{name.replace('-', '_')}"] = round(means["vllm"] / mean, 2)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
