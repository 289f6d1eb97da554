"""Rounds whose histories vLLM's prefix cache cannot keep: computed again, or brought back from the store.

Every agent keeps all it has read and said; a round gives each of them the outputs of all. The KV space holds `--fits`
contexts of the last round, so plain vLLM computes most histories again in every round. Random tokens; each system in
an engine of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import model_of, parser
from tokendance_bench.results import print_rows, write_results

PAGE = 32
SYSTEMS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "vllm": (None, False),
    "tokendance balanced": ({"fidelity": "balanced"}, False),
    "stored fast": ({"fidelity": "fast"}, True),
    "stored balanced": ({"fidelity": "balanced"}, True),
    "stored exact": ({"fidelity": "exact"}, True),
}
"""Name -> (tag of the requests, whether histories are stored)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("histories", __doc__ or "", "none", 10)
    options.set_defaults(block_tokens=40, history_tokens=600)
    options.add_argument("--rounds", type=int, default=3, help="the first one is not counted")
    options.add_argument("--answer-tokens", type=int, default=8, help="tokens every agent generates")
    options.add_argument("--fits", type=int, default=3, help="contexts that the KV space holds")
    options.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    if args.child:
        return _child(args)
    given = list(argv if argv is not None else sys.argv[1:])
    rows = [row for system in args.systems for row in _run(system, given)]
    headline = _headline(rows)
    path = write_results(args.out, headline, rows, environment(model=model_of(args), dtype=args.dtype))
    print_rows("histories", rows)
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def _run(system: str, argv: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tokendance_bench.histories", *argv]
        command += ["--systems", system, "--out", folder, "--child"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows: list[dict[str, Any]] = json.loads((Path(folder) / "rows.json").read_text(encoding="utf-8"))
    print_rows(system, rows)
    return rows


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
        max_model_len=min(8192, (pages - 1) * PAGE),
        num_gpu_blocks_override=pages,
        tokendance={"cpu_bytes": 8 << 30} if stored else {},
    )
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    contexts = [Prompt(f"a{i}", text(args.history_tokens), []) for i in range(args.agents)]
    rows = []
    for number in range(1, args.rounds + 1):
        blocks, end = [text(args.block_tokens) for _ in range(args.agents)], text(16)
        prompts = [_with(context, blocks, end) for context in contexts]
        how = None if tag is None else {"round_id": f"s:{number}", **tag}
        got = engine.round(prompts, how, max_tokens=args.answer_tokens)
        contexts = [
            Prompt(p.agent, p.tokens + answer, p.boundaries)
            for p, answer in zip(prompts, got.tokens, strict=True)
        ]
        rows.append(
            {"system": system, "round": number, "seconds": got.seconds, **_sums(prompts, got.reports)}
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
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


def _headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean seconds of the rounds after the first, and how many times faster than plain vLLM."""
    means: dict[str, list[float]] = {}
    for row in rows:
        if row["round"] > 1:
            means.setdefault(row["system"], []).append(row["seconds"])
    headline = {f"{name} s": float(np.mean(seconds)) for name, seconds in means.items()}
    if "vllm" in means:
        headline |= {
            f"{name} speedup": headline["vllm s"] / headline[f"{name} s"] for name in means if name != "vllm"
        }
    return headline


if __name__ == "__main__":
    raise SystemExit(main())
