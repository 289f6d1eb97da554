"""Time to prefill one round, histories cached: plain vLLM with prefix caching against TokenDance.

All systems run in the same process on the same engine, interleaved: untagged requests take vLLM's own path. Seconds
count from submitting all members to the last first token. Every repetition uses another recorded round.
`vllm-shared-first` puts the shared blocks before the histories: plain vLLM computes them once, and every history anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_sdk.workload import Workload

from tokendance_bench import systems
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, of_workload, parser, workload_of
from tokendance_bench.run import Run
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import context_of

DEFAULT = (
    "vllm",
    "vllm-shared-first",
    "tokendance-balanced",
    "tokendance-fast",
    "tokendance-balanced-copy",
    "tokendance-fast-copy",
)
QUICK = DEFAULT[:4]
ALLOWED = (*DEFAULT, "tokendance-cacheblend15", "serial-cacheblend15", "serial-balanced")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = ("--agents 5 --rounds 4", "--systems vllm tokendance-fast --workload nego-harbour7 --agents 6")
    options = parser("prefill", __doc__ or "", "ga-village10-newcomers", 10, examples)
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[4, 5, 6], help="recorded rounds, one a repetition"
    )
    systems.add_option(options, DEFAULT, ALLOWED, QUICK)
    args = options.parse_args(argv)
    if args.quick:
        args.rounds = args.rounds[:1]
    chosen = systems.chosen(options, args)
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    workload = workload_of(args, engine, max(args.rounds) + 1)
    warm_up(engine)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), **speedups(rows, args.agents)}

    with Run("prefill", args.out, headline, about(args), len(args.rounds) * len(chosen)) as run:
        for number in args.rounds:
            for system in chosen:
                run.doing(f"round {number}, {system.name}")
                run.add(measure(engine, prompts_of(engine, workload, number, system), system, number))
    return 0


def prompts_of(engine: Engine, workload: Workload, number: int, system: System) -> list[Prompt]:
    """The prompts of a round, laid out as the system wants them."""
    return [engine.prompt(workload.prompt(a, number, layout=system.layout)) for a in workload.agents]


def warm_up(engine: Engine) -> None:
    """One small round, so that nothing measured is a first time."""
    words = engine.encode("The quick brown fox jumps over the lazy dog. " * 30)
    prompts = [
        Prompt(f"w{i}", words[i:50] + words + words[:20], [50 - i, 50 - i + len(words)]) for i in range(3)
    ]
    engine.round(prompts, {"round_id": "warm:1", "fidelity": "balanced"})
    engine.forget()


def measure(
    engine: Engine,
    prompts: Sequence[Prompt],
    system: System,
    number: int,
    histories_cached: bool | None = None,
) -> dict[str, Any]:
    """One system, one round, from empty caches with the histories prefilled (where they come first)."""
    engine.forget()
    if histories_cached if histories_cached is not None else not system.layout.before_history:
        engine.cache_histories(prompts)
    tag = None if system.tag is None else {"round_id": f"bench:{number}", **system.tag}
    outcome = engine.round(prompts, tag)
    engine.scheduler.check()
    reports = [r for r in outcome.reports if r is not None]
    shared = statistics.mean(p.boundaries[-1] - p.boundaries[0] for p in prompts)
    total = statistics.mean(len(p.tokens) for p in prompts)

    def mean(name: str) -> int:
        return round(statistics.mean(r[name] for r in reports)) if reports else 0

    return {
        "system": system.name,
        "round": number,
        "agents": len(prompts),
        "prompt_tokens": round(total),
        "region_tokens": round(shared),
        "shared_share": round(shared / total, 3),
        "reused": mean("reused_tokens"),
        "shared": mean("shared_tokens"),
        "recomputed": mean("recomputed_tokens"),
        "fresh": mean("fresh_tokens"),
        "seconds": round(outcome.seconds, 3),
    }


def speedups(rows: Sequence[dict[str, Any]], agents: int) -> dict[str, float]:
    """Median over rounds of a plain system's seconds over another's: how many times faster than plain it was."""
    seconds = {(r["system"], r["round"]): r["seconds"] for r in rows}
    names = dict.fromkeys(r["system"] for r in rows)
    found: dict[str, float] = {}
    for base, key in (("vllm", "vllm"), ("vllm-shared-first", "shared_first")):
        for name in names:
            ratios = [
                seconds[base, number] / took
                for (system, number), took in seconds.items()
                if system == name and (base, number) in seconds
            ]
            if ratios and name not in ("vllm", base):
                at = systems.SYSTEMS[name].key
                found[f"speedup_vs_{key}_{at}_n{agents}"] = round(statistics.median(ratios), 2)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
