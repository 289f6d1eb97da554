"""Which order of a prompt is best when: histories first, shared texts first, an order of its own for every agent.

Plain vLLM and TokenDance on one engine, in turns; several workloads, since it depends on what is long: histories or
shared texts. Histories that come first are in the cache, as they are in a running session; where shared texts come
first every history is computed anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_sdk.layout import Layout
from tokendance_sdk.workload import Workload

from tokendance_bench import systems
from tokendance_bench.inproc import Engine
from tokendance_bench.options import about, model_of, parser, workload_of
from tokendance_bench.prefill import measure, warm_up
from tokendance_bench.run import Run
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import context_of

LAYOUTS = {
    "history-first": Layout.canonical(),
    "shared-first": Layout.shared_first(),
    "own-last": Layout.self_last(),
    "shuffled": Layout.shuffled(0),
}
DEFAULT = ("vllm", "tokendance-balanced", "tokendance-fast")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = ("--workloads nego-harbour7 --agents 6 --rounds 2", "--history-tokens 2000 --block-tokens 100")
    options = parser("layouts", __doc__ or "", "ga-village10-newcomers", 5, examples)
    options.set_defaults(block_tokens=200)
    options.add_argument("--workloads", nargs="+", help="default: --workload, and one with short histories")
    options.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[3, 4], help="recorded rounds, one a repetition"
    )
    systems.add_option(options, DEFAULT, (*DEFAULT, "tokendance-balanced-copy", "tokendance-fast-copy"))
    args = options.parse_args(argv)
    names = args.workloads or list(dict.fromkeys([args.workload, "debate-mmlu7"]))
    if args.quick:
        args.rounds, names = args.rounds[:1], names[:1]
    chosen = systems.chosen(options, args)
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    warm_up(engine)
    steps = len(names) * len(args.rounds) * len(args.layouts) * len(chosen)
    with Run("layouts", args.out, headline, about(args), steps) as run:
        for name in names:
            args.workload = name
            workload = workload_of(args, engine, max(args.rounds) + 1)
            for number in args.rounds:
                for layout in args.layouts:
                    for system in chosen:
                        run.doing(f"{name}, {layout}, {system.name}, round {number}")
                        run.add(one(engine, workload, number, system, layout))
    return 0


def one(engine: Engine, workload: Workload, number: int, system: System, layout: str) -> dict[str, Any]:
    """One round of one system in one layout."""
    order = LAYOUTS[layout]
    prompts = [engine.prompt(workload.prompt(agent, number, layout=order)) for agent in workload.agents]
    row = measure(engine, prompts, system, number, histories_cached=not order.before_history)
    return {"workload": workload.name, "layout": layout, **row}


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per workload the fastest exact layout and the fastest of all, and what ours gains on the former."""
    found: dict[str, Any] = {}
    for workload in dict.fromkeys(row["workload"] for row in rows):
        seconds: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            if row["workload"] == workload:
                seconds.setdefault((row["system"], row["layout"]), []).append(row["seconds"])
        middle = {at: statistics.median(each) for at, each in seconds.items()}
        exact = {at: took for at, took in middle.items() if at[0] == "vllm"}
        ours = {at: took for at, took in middle.items() if at[0] != "vllm"}
        for key, of in (("exact", exact), ("ours", ours)):
            if of:
                _, best = min((took, at) for at, took in of.items())
                found[f"best_{key}_{workload}"] = ", ".join(best)
        if exact and ours:
            found[f"best_over_best_exact_{workload}"] = round(min(exact.values()) / min(ours.values()), 2)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
