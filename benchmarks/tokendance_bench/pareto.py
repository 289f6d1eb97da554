"""Fidelity against computed tokens: every backend at several settings, one round, answers forced to the recorded ones.

`computed_share` is what an agent's prompt costs beyond its cached history: tokens computed (recomputed or fresh) over
the prompt's tokens after the history. KL is to full prefill, mean over the forced tokens of all agents.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_bench import stats, systems
from tokendance_bench.inproc import Engine, Outcome, Prompt, divergence
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.run import Run
from tokendance_bench.tokenizing import context_of

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "master": {f"first {n}": {"first": n} for n in (0, 8, 16, 32, 64, 128)},
    "epic": {f"first {n}": {"first": n} for n in (0, 8, 32, 64)},
    "cacheblend": {f"{n} %": {"percent": n} for n in (5, 15, 30, 50)},
    "cacheblend-blocks": {f"{n} %": {"percent": n} for n in (5, 15, 30, 50)},
}
"""Backend -> setting's name -> options of the request."""
QUICK = {
    "master": ("first 0", "first 32"),
    "epic": ("first 32",),
    "cacheblend": ("15 %",),
    "cacheblend-blocks": ("15 %",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("pareto", __doc__ or "", "ga-village10-newcomers", 5, ("--backends master --round 6",))
    options.add_argument("--round", type=positive, default=4, help="the recorded round that is asked for")
    options.add_argument("--answer-tokens", type=positive, default=32, help="forced answer tokens")
    there = [name for name in SETTINGS if name in systems.backends()]
    options.add_argument("--backends", nargs="+", default=there, choices=there, help="default: all of them")
    args = options.parse_args(argv)
    settings = [
        (backend, name, SETTINGS[backend][name])
        for backend in args.backends
        for name in (QUICK[backend] if args.quick else SETTINGS[backend])
    ]
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    workload = workload_of(args, engine, args.round + 1)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), "best": " | ".join(frontier(rows))}

    with Run("pareto", args.out, headline, about(args), len(settings)) as run:
        run.doing("full prefill")
        prompts = [engine.prompt(workload.prompt(agent, args.round)) for agent in workload.agents]
        recorded = workload.rounds[args.round].outputs
        answers = [engine.encode(recorded[a.id])[: args.answer_tokens] for a in workload.agents]
        engine.forget()
        engine.cache_histories(prompts)
        exact = engine.round(prompts, None, answers)
        for backend, name, chosen in settings:
            run.doing(f"{backend}, {name}")
            engine.forget()
            engine.cache_histories(prompts)
            tag = {"round_id": "bench:1", "backend": backend, "options": chosen}
            outcome = engine.round(prompts, tag, answers)
            engine.scheduler.check()
            run.add({"backend": backend, "setting": name, **compared(prompts, exact, outcome)})
    return 0


def compared(prompts: Sequence[Prompt], exact: Outcome, outcome: Outcome) -> dict[str, Any]:
    """Fidelity and cost of a round."""
    kl, top = divergence(exact.logprobs, outcome.logprobs)
    each = [divergence([a], [b])[0] for a, b in zip(exact.logprobs, outcome.logprobs, strict=True)]
    low, high = stats.bootstrap(each)
    reports = [report for report in outcome.reports if report is not None]
    beyond = statistics.mean(len(p.tokens) - len(p.history) for p in prompts)
    computed = statistics.mean(r["recomputed_tokens"] + r["fresh_tokens"] for r in reports)
    return {
        "computed": round(computed),
        "computed_share": round(computed / beyond, 4),
        "checked": round(statistics.mean(r.get("checked_tokens", 0) for r in reports)),
        "kl": round(kl, 5),
        "kl_low": round(low, 5),
        "kl_high": round(high, 5),
        "top1": round(top, 4),
        "seconds": round(outcome.seconds, 2),
    }


def frontier(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that no other one beats in both KL and computed tokens, cheapest first."""
    best: list[str] = []
    lowest = float("inf")
    for row in sorted(rows, key=lambda row: (row["computed_share"], row["kl"])):
        if row["kl"] < lowest:
            lowest = row["kl"]
            best.append(f"{row['backend']} {row['setting']}")
    return best


if __name__ == "__main__":
    raise SystemExit(main())
