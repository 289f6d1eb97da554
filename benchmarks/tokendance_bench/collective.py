"""What it is worth to reuse for a whole round at once: the same reuse together, and one request at a time.

Both ways run on one engine, in turns, with the same backend; histories are cached and the shared texts' KV is there
before the clock starts (another group of agents has read them), so what differs is the members' own work alone. The
paper's comparison stands beside it: our fidelities against CacheBlend, one request at a time. With `--loads` both ways
are measured on one server instead, where rounds arrive at random; loads are multiples of what the serial way serves
alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.workload import Workload

from tokendance_bench import load, stats, systems
from tokendance_bench.capacity import first_agents
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.load import Offer
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.prefill import warm_up
from tokendance_bench.run import Run
from tokendance_bench.serving import SERVED_NAME, serving
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import Tokens, context_of

PAIRS = {
    "": ("serial-balanced", "tokendance-balanced"),
    "_fast": ("serial-fast", "tokendance-fast"),
    "_balanced_copy": ("serial-balanced-copy", "tokendance-balanced-copy"),
    "_cacheblend15": ("serial-cacheblend15", "tokendance-cacheblend15"),
    "_blocks15": ("serial-blocks15", "tokendance-blocks15"),
    "_epic32": ("serial-epic32", "tokendance-epic32"),
}
"""What is appended to `collective_over_serial` -> the systems that do the same work one by one, and together."""

PAPER = {
    "balanced_over_serial_cacheblend15": ("serial-cacheblend15", "tokendance-balanced"),
    "fast_over_serial_cacheblend15": ("serial-cacheblend15", "tokendance-fast"),
}
"""Headline key -> a published method as published, and ours."""

DEFAULT = tuple(name for pair in PAIRS.values() for name in pair)
QUICK = ("serial-balanced", "tokendance-balanced", "serial-fast", "tokendance-fast", "serial-cacheblend15")
SAME = {name: serial.removeprefix("serial-") for serial, ours in PAIRS.values() for name in (serial, ours)}
"""System -> the pair it belongs to."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = (
        "--agents-list 3 10",
        "--workload as-hurricane-profiles32 --agents-list 10 20 25 --block-tokens 200",
    )
    options = parser("collective", __doc__ or "", "as-hurricane-profiles32", 25, examples)
    options.set_defaults(block_tokens=100, history_tokens=400)
    options.add_argument("--agents-list", type=positive, nargs="+", help="default: 3, 5, 10, 15, 20, 25")
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[2, 3, 4], help="recorded rounds, one a repetition"
    )
    options.add_argument("--loads", type=float, nargs="*", default=[], help="at a server, at these loads")
    options.add_argument("--rounds-per-load", type=positive, default=8)
    systems.add_option(options, DEFAULT, DEFAULT, QUICK)
    args = options.parse_args(argv)
    counts = args.agents_list or ([5, 10] if args.quick else [3, 5, 10, 15, 20, 25])
    args.agents = max(counts)
    if args.quick:
        args.rounds = args.rounds[:1]
    chosen = systems.chosen(options, args)
    if not any(system.name.startswith("serial") for system in chosen):
        raise SystemExit(
            f"nothing to compare: {systems.missing(systems.SYSTEMS['serial-balanced']) or 'no serial system was named'}"
        )
    if args.loads:
        return loaded(args, counts, chosen)
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    workload = workload_of(args, engine, max(args.rounds) + 1)
    warm_up(engine)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), **ratios(rows)}

    steps = len(counts) * len(args.rounds) * len(chosen)
    with Run("collective", args.out, headline, about(args), steps) as run:
        for agents in counts:
            few = first_agents(workload, agents)
            for at, number in enumerate(args.rounds):
                # In turns and every other time backwards: a machine that gets slower favours nobody.
                for system in chosen[:: -1 if at % 2 else 1]:
                    run.doing(f"{agents} agents, {system.name}, round {number}")
                    run.add(one_round(engine, few, number, system))
    return 0


def loaded(args: argparse.Namespace, counts: Sequence[int], chosen: Sequence[System]) -> int:
    """Rounds that arrive at random, every system on the same server."""
    workload = workload_of(args, Tokens.of(model_of(args)), max(args.rounds) + 1)
    first = min(args.rounds)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return of_workload(workload)

    with (
        Run(
            "collective", args.out, headline, about(args), len(counts) * len(args.loads) * len(chosen)
        ) as run,
        serving(chosen[0], model_of(args), args, args.out / "server.log") as url,
    ):
        for agents in counts:
            few = first_agents(workload, agents)
            serial = next(system for system in chosen if system.name.startswith("serial"))
            alone = load.summary(
                load.measure(url, serial, SERVED_NAME, few, Offer(0.0, 3, 1, first), f"alone{agents}")
            )
            for at in args.loads:
                for system in chosen:
                    run.doing(f"{agents} agents, {system.name}, load {at:g}")
                    offer = Offer(at / alone["latency_s"], args.rounds_per_load, 3, first)
                    name = f"{system.key}-{agents}-{at:g}"
                    found = load.summary(load.measure(url, system, SERVED_NAME, few, offer, name))
                    run.add({**_labels(system, agents, at), "seconds": found["latency_s"], **found})
    return 0


def _labels(system: System, agents: int, at: float) -> dict[str, Any]:
    return {
        "pair": SAME[system.name],
        "execution": "serial" if system.name.startswith("serial") else "collective",
        "system": system.name,
        "agents": agents,
        "load": at,
    }


def one_round(engine: Engine, workload: Workload, number: int, system: System) -> dict[str, Any]:
    """Seconds of one round, its shared texts and histories in the cache."""
    engine.forget()
    prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
    engine.round(readers(engine, workload, number), {"round_id": "bench:1", **(system.tag or {})})
    engine.cache_histories(prompts)
    outcome = engine.round(prompts, {"round_id": "bench:2", **(system.tag or {})})
    engine.scheduler.check()
    reports = [report for report in outcome.reports if report is not None]
    return {
        **_labels(system, len(prompts), 0),
        "round": number,
        "seconds": round(outcome.seconds, 4),
        "reused": round(statistics.mean(r["reused_tokens"] for r in reports)),
        "recomputed": round(statistics.mean(r["recomputed_tokens"] for r in reports)),
        "fresh": round(statistics.mean(r["fresh_tokens"] for r in reports)),
        "fell_back": sum(r["fallback_reason"] is not None for r in reports),
    }


def readers(engine: Engine, workload: Workload, number: int) -> list[Prompt]:
    """Two agents that are not in the round and read the same texts: they bring the shared KV into the cache."""
    return [
        engine.prompt(
            RoundPrompt.assemble(f"reader{n}", f"You are reader {n}.", workload.shared(number), task="Go on.")
        )
        for n in range(2)
    ]


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Serial seconds over collective ones by number of agents: how many times faster together is.

    Medians over rounds; `_low` keys are lower ends of their 95 % intervals, where there are at least three rounds.
    """
    taken: dict[tuple[str, int, int], float] = {
        (row["system"], row["agents"], row["round"]): row["seconds"] for row in rows if not row["load"]
    }
    found: dict[str, float] = {}
    compared = {f"collective_over_serial{name}": pair for name, pair in PAIRS.items()} | PAPER
    for agents in sorted({row["agents"] for row in rows}):
        for key, (serial, ours) in compared.items():
            each = [
                seconds / taken[ours, n, number]
                for (system, n, number), seconds in taken.items()
                if (system, n) == (serial, agents) and (ours, n, number) in taken
            ]
            if each:
                found[f"{key}_n{agents}"] = round(statistics.median(each), 2)
            if len(each) > 2:
                found[f"{key}_low_n{agents}"] = round(stats.bootstrap(each, statistics.median)[0], 2)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
