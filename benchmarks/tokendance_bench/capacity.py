"""How many agents a server carries: round latency by agents and load, and agents at once in a small KV space.

The latency target is plain vLLM's median round latency with 3 agents, one round at a time, measured before anything
else. Loads are multiples of the requests per second that plain vLLM serves then (3 / target); rounds arrive at random
(Poisson) from sessions that wait for their answers. Every system gets the same arrivals, on a server of its own, one
server at a time. The second part counts, in engines with a fixed number of pages, how many agents run at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokendance_sdk.cli_server import ServerStartError

from tokendance_bench import children, load, pages, systems
from tokendance_bench.load import Offer
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.run import Run
from tokendance_bench.serving import SERVED_NAME, serving
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import Tokens

BASE_AGENTS = 3
DEFAULT = (
    "vllm",
    "vllm-shared-first",
    "lmcache",
    "serial-cacheblend15",
    "tokendance-balanced",
    "tokendance-fast",
)
QUICK = ("vllm", "serial-cacheblend15", "tokendance-balanced")
ALLOWED = tuple(systems.SYSTEMS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = (
        "--agents-list 3 10 --loads 0.5 --systems vllm tokendance-fast",
        "--part served --url other=http://localhost:8000/v1",
        "--part pages --agents 32 --workload as-hurricane-profiles32 --block-tokens 200",
    )
    options = parser("capacity", __doc__ or "", "ga-village10-newcomers", 10, examples)
    options.set_defaults(block_tokens=200)
    options.add_argument("--part", choices=("all", "served", "pages"), default="all")
    options.add_argument(
        "--agents-list",
        type=positive,
        nargs="+",
        help="rounds of so many; default: 1, 3, 5, 7, ... and --agents",
    )
    options.add_argument("--loads", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
    options.add_argument("--rounds", type=positive, default=12, help="measured rounds of every point")
    options.add_argument("--sessions", type=positive, default=3, help="that take turns")
    options.add_argument("--answer-tokens", type=positive, default=32, help="forced length of answers")
    options.add_argument(
        "--fits", type=positive, default=4, help="agents of plain vLLM that the small KV space holds"
    )
    systems.add_option(options, DEFAULT, ALLOWED, QUICK)
    systems.add_urls(options)
    args = options.parse_args(argv)
    if args.quick:
        args.loads, args.rounds, args.sessions = args.loads[1:2] or args.loads, min(args.rounds, 3), 1
        args.history_tokens = min(args.history_tokens or 300, 300)
        args.block_tokens = min(args.block_tokens or 60, 60)
    counts = sizes(args)
    chosen = systems.chosen(options, args)
    tokens = Tokens.of(model_of(args))
    workload = workload_of(args, tokens, 6)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), **served_headline(rows), **pages_headline(rows)}

    served = 1 + len(chosen) * len(counts) * len(args.loads) if args.part != "pages" else 0
    paged = [s for s in chosen if s.name in pages.ALLOWED] if args.part != "served" else []
    with Run("capacity", args.out, headline, about(args), served + 2 * len(paged)) as run:
        if served:
            slo = target(run, args, workload)
            for system in chosen:
                serve(run, args, workload, system, counts, slo)
        for live in (False, True) if paged else ():
            for system in paged:
                run.doing(f"{system.name}, pages")
                fixed(run, args, system, live)
    return 0


def sizes(args: argparse.Namespace) -> list[int]:
    """Numbers of agents to measure, ascending."""
    if args.agents_list:
        wanted = set(args.agents_list)
    else:
        wanted = (
            {1, BASE_AGENTS, args.agents}
            if args.quick
            else {1, args.agents, *range(BASE_AGENTS, args.agents, 2)}
        )
    if max(wanted) > args.agents:
        args.agents = max(wanted)
    return sorted(wanted)


def target(run: Run, args: argparse.Namespace, workload: Any) -> float:
    """Plain vLLM's median round latency with 3 agents, one round at a time."""
    run.doing("target: plain vLLM, 3 agents")
    system = systems.SYSTEMS["vllm"]
    few = first_agents(workload, BASE_AGENTS)
    offer = Offer(0.0, max(3, args.rounds // 2), 1, answer_tokens=args.answer_tokens)
    with serving(system, model_of(args), args, args.out / "target.log") as url:
        found = load.summary(load.measure(url, system, SERVED_NAME, few, offer, "target"))
    run.add({"part": "target", "system": "vllm", "agents": BASE_AGENTS, **found})
    return float(found["latency_s"])


def serve(
    run: Run, args: argparse.Namespace, workload: Any, system: System, counts: Sequence[int], slo: float
) -> None:
    """All points of one system; a server that does not come up is a row that says so."""
    run.doing(f"{system.name}, starting")
    base = {"part": "served", "system": system.name}
    try:
        with serving(system, model_of(args), args, args.out / f"{system.name}.log") as url:
            model = SERVED_NAME if system.server != "url" else first_model(url)
            for agents in counts:
                for at in args.loads:
                    run.doing(f"{system.name}, {agents} agents, load {at:g}")
                    qps = at * BASE_AGENTS / slo
                    offer = Offer(qps / agents, args.rounds, args.sessions, answer_tokens=args.answer_tokens)
                    served = load.measure(
                        url, system, model, first_agents(workload, agents), offer, f"n{agents}l{at:g}"
                    )
                    run.add(
                        {
                            **base,
                            "agents": agents,
                            "load": at,
                            "qps": round(qps, 4),
                            **load.summary(served, slo),
                        }
                    )
    except (ServerStartError, children.ChildError) as error:
        run.add({**base, "error": str(error).splitlines()[0]})


def first_agents(workload: Any, agents: int) -> Any:
    """The workload with its first so many agents."""
    ids = [agent.id for agent in workload.agents[:agents]]
    rounds = [
        replace(
            each,
            outputs={who: each.outputs[who] for who in ids},
            own={who: each.own[who] for who in ids},
            private={who: text for who, text in each.private.items() if who in ids},
            carried=(),
            speaking_order=(),
        )
        for each in workload.rounds
    ]
    return replace(workload, agents=workload.agents[:agents], rounds=tuple(rounds))


def first_model(url: str) -> str:
    """What a server calls its first model."""
    from openai import OpenAI
    from tokendance_sdk.replay import served_model

    return served_model(OpenAI(base_url=url, api_key="none"))[0]


def fixed(run: Run, args: argparse.Namespace, system: System, live: bool) -> None:
    """One system in a small KV space (or, with `live`, an ample one whose pages are counted)."""
    arguments = [
        *("--workload", args.workload, "--agents", str(args.agents), "--fits", str(args.fits)),
        *("--history-tokens", str(args.history_tokens), "--block-tokens", str(args.block_tokens)),
        *("--answer-tokens", str(args.answer_tokens), "--dtype", args.dtype, "--kv-gib", str(args.kv_gib)),
        *("--model", model_of(args), "--systems", system.name, *(["--live"] if live else [])),
    ]
    log: Path = args.out / f"pages-{system.name}{'-live' if live else ''}.log"
    for row in children.rows_of("tokendance_bench.pages", arguments, log):
        run.add({"part": "live pages" if live else "pages", **row})


def served_headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Agents within the target at the middle load, and latency with most agents, over plain vLLM's (and serial's)."""
    served = [row for row in rows if row.get("part") == "served" and "latency_s" in row]
    if not served:
        return {}
    loads = sorted({row["load"] for row in served})
    middle, most = loads[len(loads) // 2], max(row["agents"] for row in served)
    found: dict[str, Any] = {"slo_s": served[0]["slo_s"], "load": middle}
    names = list(dict.fromkeys(row["system"] for row in served))
    carried = {name: agents_within(served, name, middle) for name in names}
    latency = {
        row["system"]: row["latency_s"] for row in served if (row["load"], row["agents"]) == (loads[0], most)
    }
    for name in names:
        found[f"max_agents_{name}"] = carried[name]
        for base, key in (("vllm", "vllm"), ("serial-cacheblend15", "serial")):
            if name == base or not carried.get(base):
                continue
            at = "" if name == "tokendance-balanced" else f"_{_key(name)}"
            found[f"max_agents_vs_{key}{at}"] = round(carried[name] / carried[base], 2)
        if name != "vllm" and {"vllm", name} <= set(latency):
            at = "" if name == "tokendance-balanced" else f"_{_key(name)}"
            found[f"round_latency_vs_vllm{at}_n{most}"] = round(latency[name] / latency["vllm"], 3)
    return found


def _key(name: str) -> str:
    return systems.SYSTEMS[name].key if name in systems.SYSTEMS else name


def agents_within(rows: Sequence[dict[str, Any]], system: str, at: float) -> int:
    """Most agents of a round whose median latency kept the target at a load; 0 if none did."""
    kept = [
        row["agents"]
        for row in rows
        if (row["system"], row["load"]) == (system, at)
        and row["latency_s"] <= row["slo_s"]
        and not row["failed"]
    ]
    return max(kept, default=0)


def pages_headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Agents at once and live pages over plain vLLM's."""
    found: dict[str, Any] = {}
    for part, live in (("pages", False), ("live pages", True)):
        mine = [row for row in rows if row.get("part") == part]
        if mine:
            found |= pages.ratios(mine, mine[0]["agents"], live)
    if "agents_running_at_once_vs_vllm_balanced" in found:
        found["agents_running_at_once_vs_vllm"] = found["agents_running_at_once_vs_vllm_balanced"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
