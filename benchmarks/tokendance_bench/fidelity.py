"""How far approximate reuse is from full prefill: KL and top-1 over recorded answers, and drift over rounds.

Answers are forced to the recorded tokens, so every system is asked for the same next-token distributions. The
noise floor is plain vLLM against itself with another order of requests. A third part lets agents answer greedily, and
counts the rounds before the first different answer; a fourth (`flips`) counts decisions that reuse changes in debates.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_sdk.workload import Workload

from tokendance_bench import flips, greedy, stats
from tokendance_bench.inproc import Engine, Outcome, divergence
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.run import Run
from tokendance_bench.systems import backends
from tokendance_bench.tokenizing import context_of
from tokendance_bench.transcript import Transcript

SYSTEMS: dict[str, dict[str, Any]] = {
    "balanced": {"fidelity": "balanced"},
    "fast": {"fidelity": "fast"},
    "balanced copy": {"fidelity": "balanced", "placement": "copy"},
    "fast copy": {"fidelity": "fast", "placement": "copy"},
    "cacheblend15": {"backend": "cacheblend", "options": {"percent": 15}},
    "epic": {"backend": "epic"},
}
"""What is compared with full prefill; pages are shared where members can be aligned, unless `copy` is asked for."""

PARTS = ("single", "drift", "greedy", "flips")


FLOOR = "full prefill, other order"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = (
        "--systems balanced fast --skip drift",
        "--drift-workloads ga-ville3-valentine --skip single",
        "--skip single drift greedy --flip-workloads debate-mmlu7 --flip-rounds 4",
    )
    options = parser("fidelity", __doc__ or "", "ga-village10-newcomers", 5, examples)
    options.add_argument("--round", type=int, default=4, help="the recorded round that is asked for")
    options.add_argument("--answer-tokens", type=int, default=32, help="forced answer tokens")
    there = [name for name, tag in SYSTEMS.items() if tag.get("backend", "master") in {"master", *backends()}]
    options.add_argument("--systems", nargs="+", choices=there, help="what to compare; default: all")
    options.add_argument(
        "--drift-workloads", nargs="+", default=["ga-ville3-valentine"], help="context of all rounds"
    )
    options.add_argument("--drift-agents", type=int, default=3)
    options.add_argument("--drift-rounds", type=int, default=6)
    options.add_argument("--drift-block-tokens", type=int, default=300)
    options.add_argument("--drift-history-tokens", type=int, default=800)
    options.add_argument(
        "--drift-uneven",
        type=int,
        default=0,
        help="words by which each agent's history is shorter than the one before",
    )
    options.add_argument(
        "--greedy-workloads",
        nargs="+",
        default=["ga-ville3-meet-and-greet", "ga-ville3-valentine", "nego-harbour7"],
        help="rounds until the first different answer",
    )
    options.add_argument("--greedy-rounds", type=positive, default=6)
    flips.add_options(options)
    options.add_argument("--skip", choices=PARTS, nargs="+", default=[], help="leave parts out")
    args = options.parse_args(argv)
    args.systems = args.systems or [n for n in there if not (args.quick and n.endswith("copy"))]
    if args.quick:
        args.drift_rounds = min(args.drift_rounds, 4)
        args.greedy_workloads, args.greedy_rounds = args.greedy_workloads[:1], min(args.greedy_rounds, 4)
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    environment, steps = about(args), 0
    named: dict[str, Any] = {}
    systems: dict[str, dict[str, Any] | None] = {FLOOR: None, **{n: SYSTEMS[n] for n in args.systems}}

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            **named,
            **of_single(rows),
            **of_drift(rows),
            **of_greedy(rows),
            **flips.headline(rows, FLOOR),
        }

    if "single" not in args.skip:
        steps += 1 + len(args.systems)
    if "drift" not in args.skip:
        steps += len(args.drift_workloads) * len(args.systems) * args.drift_rounds
    if "greedy" not in args.skip:
        steps += len(args.greedy_workloads) * (1 + len(args.systems))
    if "flips" not in args.skip:
        steps += flips.steps(args, systems)
    with Run("fidelity", args.out, headline, environment, steps) as run:
        if "single" not in args.skip:
            workload = workload_of(args, engine, args.round + 1)
            named |= of_workload(workload)
            single(engine, workload, args.round, args.systems, args.answer_tokens, run)
        if "drift" not in args.skip:
            args.agents, args.block_tokens = args.drift_agents, args.drift_block_tokens
            args.history_tokens = args.drift_history_tokens
            for name in args.drift_workloads:
                args.workload = name
                workload = workload_of(args, engine, args.drift_rounds + 1)
                drift(engine, workload, args.systems, args.answer_tokens, run, args.drift_uneven)
        if "greedy" not in args.skip:
            args.agents, args.block_tokens = args.drift_agents, args.drift_block_tokens
            for name in args.greedy_workloads:
                args.workload = name
                workload = workload_of(args, engine, args.greedy_rounds)
                greedy.measure(engine, workload, args.answer_tokens, systems, run)
        if "flips" not in args.skip:
            flips.measure(engine, args, systems, run)
    return 0


def single(
    engine: Engine, workload: Workload, number: int, systems: Sequence[str], answer_tokens: int, run: Run
) -> None:
    """One round: every system against plain vLLM, and plain vLLM against itself (the noise floor)."""
    run.doing(f"round {number}, full prefill")
    prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
    answers = [engine.encode(workload.rounds[number].outputs[a.id])[:answer_tokens] for a in workload.agents]
    engine.forget()
    engine.cache_histories(prompts)
    exact = engine.round(prompts, None, answers)
    engine.forget()
    run.doing(f"round {number}, noise floor")
    again = engine.round(prompts[::-1], None, answers[::-1])
    again.logprobs.reverse()
    run.add(_row(workload.name, number, FLOOR, "single", exact, again))
    for system in systems:
        run.doing(f"round {number}, {system}")
        engine.forget()
        engine.cache_histories(prompts)
        outcome = engine.round(prompts, {"round_id": f"bench:{number}", **SYSTEMS[system]}, answers)
        run.add(_row(workload.name, number, system, "single", exact, outcome))


def drift(
    engine: Engine,
    workload: Workload,
    systems: Sequence[str],
    answer_tokens: int,
    run: Run,
    uneven: int = 0,
) -> None:
    """Contexts that keep every round, approximate history under each next round; KL per round."""
    run.doing(f"{workload.name}, full prefill")
    plain = Transcript(engine, workload, answer_tokens, uneven)
    engine.forget()
    exact = [plain.play(number, None) for number in range(1, len(workload.rounds))]
    for system in systems:
        engine.forget()
        ours = Transcript(engine, workload, answer_tokens, uneven)
        for number in range(1, len(workload.rounds)):
            run.doing(f"{workload.name}, round {number}, {system}")
            outcome = ours.play(number, {"round_id": f"drift:{number}", **SYSTEMS[system]})
            run.add(_row(workload.name, number, system, "transcript", exact[number - 1], outcome))


def of_single(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """KL and top-1 per system, and the noise floor."""
    found: dict[str, float] = {}
    for row in rows:
        if row["context"] != "single":
            continue
        if row["level"] == FLOOR:
            found["kl_noise_floor"] = row["kl"]
        else:
            key = row["level"].replace(" ", "_")
            found |= {f"kl_{key}": row["kl"], f"top1_{key}": row["top1"]}
    return found


def of_drift(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Per system the mean and the worst round's KL over all workloads, and the last three rounds over the first three.

    A workload's own numbers carry its name.
    """
    series: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["context"] == "transcript":
            series.setdefault((row["workload"], row["level"]), []).append(row["kl"])
    found: dict[str, float] = {}
    growth: dict[str, list[float]] = {}
    for (workload, level), kl in series.items():
        few = min(3, max(1, len(kl) // 2))
        key = f"{workload}_{level.replace(' ', '_')}"
        start = statistics.mean(kl[:few])
        found |= {f"mean_kl_{key}": round(statistics.mean(kl), 5), f"max_kl_{key}": max(kl)}
        if len(kl) > 1 and start > 0:
            found[f"drift_{key}"] = round(statistics.mean(kl[-few:]) / start, 3)
            growth.setdefault(level.replace(" ", "_"), []).append(found[f"drift_{key}"])
    return found | {f"drift_{level}": round(statistics.median(each), 3) for level, each in growth.items()}


def of_greedy(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Per level the share of rounds before the first different answer, over all workloads."""
    found: dict[str, float] = {}
    mine = [row for row in rows if row["context"] == "greedy"]
    for level in dict.fromkeys(row["level"] for row in mine):
        each = [row for row in mine if row["level"] == level]
        key = "noise_floor" if level == FLOOR else level.replace(" ", "_")
        same, of = sum(row["rounds_same"] for row in each), sum(row["rounds"] for row in each)
        found[f"rounds_same_{key}"] = round(same / of, 3)
    return found


def _row(
    workload: str, number: int, level: str, context: str, exact: Outcome, outcome: Outcome
) -> dict[str, Any]:
    kl, top = divergence(exact.logprobs, outcome.logprobs)
    each = [divergence([a], [b])[0] for a, b in zip(exact.logprobs, outcome.logprobs, strict=True)]
    low, high = stats.bootstrap(each)
    reports = [r for r in outcome.reports if r is not None]

    def mean(*names: str) -> int:
        return round(statistics.mean(sum(r[name] for name in names) for r in reports)) if reports else 0

    return {
        "workload": workload,
        "round": number,
        "level": level,
        "context": context,
        "agents": len(outcome.tokens),
        "cached": mean("cached_tokens"),
        "reused": mean("reused_tokens"),
        "shared": mean("shared_tokens"),
        "computed": mean("recomputed_tokens", "fresh_tokens"),
        "fillers": mean("filler_tokens"),
        "skipped": mean("skipped_positions"),
        "kl": round(kl, 5),
        "kl_low": round(low, 5),
        "kl_high": round(high, 5),
        "top1": round(top, 4),
    }


if __name__ == "__main__":
    raise SystemExit(main())
