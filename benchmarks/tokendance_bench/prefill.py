"""Time to prefill one round, histories cached: plain vLLM with prefix caching against TokenDance.

Both run in the same process on the same engine, interleaved: untagged requests take vLLM's own path. Seconds count
from submitting all members to the last first token. Every repetition uses another recorded round.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import model_of, parser, workload_of
from tokendance_bench.results import print_rows, write_results

SYSTEMS: dict[str, dict[str, Any] | None] = {
    "vllm": None,
    "tokendance balanced": {"fidelity": "balanced"},
    "tokendance fast": {"fidelity": "fast"},
    "tokendance balanced copy": {"fidelity": "balanced", "placement": "copy"},
    "tokendance fast copy": {"fidelity": "fast", "placement": "copy"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("prefill", __doc__ or "", "ga-village10-newcomers", 10)
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[4, 5, 6], help="recorded rounds, one a repetition"
    )
    args = options.parse_args(argv)
    rounds = args.rounds[:1] if args.quick else args.rounds
    engine = Engine(model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=8192)
    workload = workload_of(args, engine, max(rounds) + 1)
    warm_up(engine)
    rows = []
    for number in rounds:
        prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
        for system, tag in SYSTEMS.items():
            row = measure(engine, prompts, system, number, tag)
            rows.append(row)
            print_rows(f"round {number}, {system}", [row])
    headline: dict[str, Any] = {
        "workload": workload.name,
        "cut": workload.cut.describe() if workload.cut else "uncut",
    }
    headline |= speedups(rows, args.agents)
    path = write_results(args.out, headline, rows, environment(model=model_of(args), dtype=args.dtype))
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def warm_up(engine: Engine) -> None:
    """One small round, so that nothing measured is a first time."""
    words = engine.encode("The quick brown fox jumps over the lazy dog. " * 30)
    prompts = [
        Prompt(f"w{i}", words[i:50] + words + words[:20], [50 - i, 50 - i + len(words)]) for i in range(3)
    ]
    engine.round(prompts, {"round_id": "warm:1", "fidelity": "balanced"})
    engine.forget()


def measure(
    engine: Engine, prompts: Sequence[Prompt], system: str, number: int, tag: dict[str, Any] | None
) -> dict[str, Any]:
    """One system, one round, from empty caches with the histories prefilled."""
    engine.forget()
    engine.cache_histories(prompts)
    outcome = engine.round(prompts, None if tag is None else {"round_id": f"bench:{number}", **tag})
    engine.scheduler.check()
    reports = [r for r in outcome.reports if r is not None]
    shared = statistics.mean(p.boundaries[-1] - p.boundaries[0] for p in prompts)
    total = statistics.mean(len(p.tokens) for p in prompts)
    return {
        "system": system,
        "round": number,
        "agents": len(prompts),
        "prompt_tokens": round(total),
        "region_tokens": round(shared),
        "reused": round(statistics.mean(r["reused_tokens"] for r in reports)) if reports else 0,
        "shared": round(statistics.mean(r["shared_tokens"] for r in reports)) if reports else 0,
        "recomputed": round(statistics.mean(r["recomputed_tokens"] for r in reports)) if reports else 0,
        "fresh": round(statistics.mean(r["fresh_tokens"] for r in reports)) if reports else 0,
        "seconds": round(outcome.seconds, 3),
    }


def speedups(rows: Sequence[dict[str, Any]], agents: int) -> dict[str, float]:
    """Median over rounds of plain seconds over TokenDance's, per level and placement."""
    seconds = {(r["system"], r["round"]): r["seconds"] for r in rows}
    numbers = sorted({r["round"] for r in rows})
    return {
        f"speedup_vs_vllm_{system.removeprefix('tokendance ').replace(' ', '_')}_n{agents}": round(
            statistics.median(seconds["vllm", n] / seconds[system, n] for n in numbers), 2
        )
        for system in SYSTEMS
        if system != "vllm"
    }


if __name__ == "__main__":
    raise SystemExit(main())
