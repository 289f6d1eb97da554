"""How many agents run at once in a fixed KV space, and how many pages a round holds beyond the histories.

Plain vLLM and both placements, each in an engine of its own with the same number of pages. A round's members run at
once when vLLM has all of them in its batch; a preemption means that the space was too small after all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from tokendance_bench import children, forcing, systems
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, parser, positive, workload_of
from tokendance_bench.run import Run, append_row
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import Tokens, context_of

PAGE = 32
ALLOWED = (
    "vllm",
    "tokendance-balanced",
    "tokendance-fast",
    "tokendance-balanced-copy",
    "tokendance-fast-copy",
)
QUICK = ALLOWED[:3]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    examples = ("--agents 10 --fits 3", "--live --workload ga-village10-newcomers --agents 10")
    options = parser("pages", __doc__ or "", "as-hurricane-profiles32", 32, examples)
    options.set_defaults(block_tokens=200)
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[2], help="recorded rounds that are asked for"
    )
    options.add_argument("--answer-tokens", type=positive, default=32, help="forced answer tokens")
    options.add_argument(
        "--fits", type=positive, default=4, help="agents of plain vLLM that the KV space holds"
    )
    systems.add_option(options, ALLOWED, ALLOWED, QUICK)
    options.add_argument("--live", action="store_true", help="ample KV space: count the pages a round holds")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    if args.quick:
        args.agents = min(args.agents, 10)
    chosen = systems.chosen(options, args)
    if args.child:
        return _child(args, chosen[0])
    given = list(argv if argv is not None else sys.argv[1:])

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"workload": args.workload, "agents": args.agents, **ratios(rows, args.agents, args.live)}

    with Run("pages", args.out, headline, about(args), len(chosen) * len(args.rounds)) as run:
        for system in chosen:
            run.doing(system.name)
            arguments = [*given, "--systems", system.name]
            for row in children.rows_of("tokendance_bench.pages", arguments, args.out / f"{system.name}.log"):
                run.add(row)
    return 0


def _child(args: Any, system: System) -> int:
    most = max(args.rounds) + 1
    small = 0 if args.live else _small(args, most)
    pages: dict[str, Any] = {"num_gpu_blocks_override": small} if small else {}
    engine = Engine(
        model_of(args),
        kv_gib=args.kv_gib,
        dtype=args.dtype,
        max_num_seqs=64,
        # vLLM wants one context of the greatest length to fit.
        max_model_len=min(context_of(model_of(args)), (small - 1) * PAGE if small else 1 << 30),
        **pages,
    )
    workload = workload_of(args, engine, most)
    for number in args.rounds:
        prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
        answers = [
            engine.encode(workload.rounds[number].outputs[a.id])[: args.answer_tokens]
            for a in workload.agents
        ]
        if args.live:
            engine.forget()
            engine.cache_histories(prompts)
        append_row(args.out / children.ROWS, measure(engine, prompts, answers, system, number))
    return 0


def _small(args: Any, rounds: int) -> int:
    """Pages that hold `--fits` of the largest prompts with their answers, and vLLM's null page."""
    tokens = Tokens.of(model_of(args))
    workload = workload_of(args, tokens, rounds)
    sizes = [
        len(tokens.prompt(workload.prompt(agent, number)).tokens) + args.answer_tokens
        for number in args.rounds
        for agent in workload.agents
    ]
    return int(sum(-(-size // PAGE) for size in sorted(sizes)[-args.fits :])) + 1


def measure(
    engine: Engine, prompts: Sequence[Prompt], answers: Sequence[list[int]], system: System, number: int
) -> dict[str, Any]:
    """Play one round step by step, watching vLLM's batch and pages."""
    from tokendance_engine.offline import tag as tagged
    from vllm import SamplingParams

    tag, core = system.tag, engine.llm.llm_engine
    scheduler = core.engine_core.engine_core.scheduler
    pool, history = engine.scheduler.pool, sum(len(p.history) // PAGE for p in prompts)
    preempted = _Preemptions(scheduler)
    for i, prompt in enumerate(prompts):
        params = forcing.forced(SamplingParams(temperature=0, detokenize=False), answers[i])
        if tag is not None:
            params = tagged(
                params,
                agent_id=prompt.agent.replace(" ", "_"),
                round_id=f"bench:{number}",
                round_size=len(prompts),
                segments=prompt.boundaries,
                **tag,
            )
        core.add_request(f"{system.name}-{number}-{i}", {"prompt_token_ids": prompt.tokens}, params)
    most, quiet, used = 0, 0, 0
    reports, seconds = [], []
    with preempted:
        while core.has_unfinished_requests():
            together, started = len(scheduler.running) == len(prompts), time.perf_counter()
            for output in core.step():
                if output.finished:
                    reports.append((output.kv_transfer_params or {}).get("tokendance"))
            running = len(scheduler.running)
            if together:
                seconds.append(time.perf_counter() - started)
            most = max(most, running)
            if not preempted.count:
                quiet = max(quiet, running)
            used = max(used, pool.size - 1 - pool.free)
            engine.scheduler.check()
    told = [r for r in reports if r]
    return {
        "system": system.name,
        "round": number,
        "agents": len(prompts),
        "kv_pages": pool.size - 1,
        "running_at_once": most,
        "before_any_preemption": quiet,
        "preemptions": preempted.count,
        "pages_used": used,
        "pages_beyond_history": used - history,
        "shared_tokens": round(sum(r["shared_tokens"] for r in told) / max(1, len(told))),
        "reused_tokens": round(sum(r["reused_tokens"] for r in told) / max(1, len(told))),
        "served_plainly": sum(r["fallback_reason"] is not None for r in told),
        "decode_step_ms": round(statistics.median(seconds) * 1e3, 1) if seconds else None,
    }


class _Preemptions:
    """Counts a scheduler's preemptions while it is entered."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.count = 0

    def __enter__(self) -> None:
        inner = self._scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return inner(*args, **kwargs)

        self._scheduler._preempt_request = counted

    def __exit__(self, *exc: object) -> None:
        del self._scheduler._preempt_request


def ratios(rows: Sequence[dict[str, Any]], agents: int, live: bool) -> dict[str, float]:
    """Medians over rounds of agents at once over plain vLLM's; with `live`, its pages beyond histories over ours."""
    plain = {row["round"]: row for row in rows if row["system"] == "vllm"}
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["system"] == "vllm" or row["round"] not in plain:
            continue
        key, base = systems.SYSTEMS[row["system"]].key, plain[row["round"]]
        if live:
            ratio = base["pages_beyond_history"] / max(1, row["pages_beyond_history"])
            found.setdefault(f"live_pages_ratio_{key}_n{agents}", []).append(ratio)
        else:
            ratio = row["running_at_once"] / base["running_at_once"]
            found.setdefault(f"agents_running_at_once_vs_vllm_{key}", []).append(ratio)
    return {key: round(statistics.median(each), 2) for key, each in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
