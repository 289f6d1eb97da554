"""How many agents run at once in a fixed KV space, and how many pages a round holds beyond the histories.

Plain vLLM and both placements, each in an engine of its own with the same number of pages. A round's members run at
once when vLLM has all of them in its batch; a preemption means that the space was too small after all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokendance_bench import forcing
from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import model_of, parser, workload_of
from tokendance_bench.results import print_rows, write_results

PAGE = 32
SYSTEMS: dict[str, dict[str, Any] | None] = {
    "vllm": None,
    "tokendance balanced": {"fidelity": "balanced"},
    "tokendance fast": {"fidelity": "fast"},
    "tokendance balanced copy": {"fidelity": "balanced", "placement": "copy"},
    "tokendance fast copy": {"fidelity": "fast", "placement": "copy"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("capacity", __doc__ or "", "as-hurricane-profiles32", 32)
    options.set_defaults(block_tokens=200)
    options.add_argument(
        "--rounds", type=int, nargs="+", default=[2], help="recorded rounds that are asked for"
    )
    options.add_argument("--answer-tokens", type=int, default=32, help="forced answer tokens")
    options.add_argument("--fits", type=int, default=4, help="agents of plain vLLM that the KV space holds")
    options.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    options.add_argument("--live", action="store_true", help="ample KV space: count the pages a round holds")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    if args.child:
        return _child(args)
    rows = []
    for system in args.systems:
        rows += _run(args, system, list(argv if argv is not None else sys.argv[1:]))
        print_rows(system, rows[-1:])
    headline = _headline(args, rows)
    path = write_results(args.out, headline, rows, environment(model=model_of(args), dtype=args.dtype))
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def _run(args: Any, system: str, argv: list[str]) -> list[dict[str, Any]]:
    """One system in a process of its own: vLLM starts one engine per process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tokendance_bench.capacity", *argv]
        command += ["--systems", system, "--out", folder, "--child"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows: list[dict[str, Any]] = json.loads((Path(folder) / "rows.json").read_text(encoding="utf-8"))
        return rows


def _child(args: Any) -> int:
    (system,) = args.systems
    most = max(args.rounds) + 1
    small = 0 if args.live else _small(args, most)
    pages: dict[str, Any] = {"num_gpu_blocks_override": small} if small else {}
    engine = Engine(
        model_of(args),
        kv_gib=args.kv_gib,
        dtype=args.dtype,
        max_num_seqs=64,
        # vLLM wants one context of the greatest length to fit.
        max_model_len=min(8192, (small - 1) * PAGE) if small else 8192,
        **pages,
    )
    workload = workload_of(args, engine, most)
    rows = []
    for number in args.rounds:
        prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
        answers = [
            engine.encode(workload.rounds[number].outputs[a.id])[: args.answer_tokens]
            for a in workload.agents
        ]
        if args.live:
            engine.forget()
            engine.cache_histories(prompts)
        rows.append(measure(engine, prompts, answers, system, number))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    return 0


def _small(args: Any, rounds: int) -> int:
    """Pages that hold `--fits` of the largest prompts with their answers, and vLLM's null page."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_of(args))
    stand_in = _Tokenizer(tokenizer)
    workload = workload_of(args, stand_in, rounds)
    sizes = [
        len(Engine.prompt(stand_in, workload.prompt(agent, number)).tokens) + args.answer_tokens
        for number in args.rounds
        for agent in workload.agents
    ]
    return int(sum(-(-size // PAGE) for size in sorted(sizes)[-args.fits :])) + 1


class _Tokenizer(Engine):
    """The tokenizing half of an engine, without an engine."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


def measure(
    engine: Engine, prompts: Sequence[Prompt], answers: Sequence[list[int]], system: str, number: int
) -> dict[str, Any]:
    """Play one round step by step, watching vLLM's batch and pages."""
    from tokendance_engine.offline import tag as tagged
    from vllm import SamplingParams

    tag, core = SYSTEMS[system], engine.llm.llm_engine
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
        core.add_request(f"{system}-{number}-{i}", {"prompt_token_ids": prompt.tokens}, params)
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
        "system": system,
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


def _headline(args: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = {row["system"]: row for row in reversed(rows)}
    plain = first.get("vllm")
    found: dict[str, Any] = {"workload": args.workload, "agents": args.agents}
    for system, row in first.items():
        if plain is None or system == "vllm":
            continue
        key = system.removeprefix("tokendance ").replace(" ", "_")
        if args.live:
            ratio = plain["pages_beyond_history"] / max(1, row["pages_beyond_history"])
            found[f"live_pages_ratio_{key}_n{args.agents}"] = round(ratio, 2)
        else:
            found[f"agents_running_at_once_vs_vllm_{key}"] = round(
                row["running_at_once"] / plain["running_at_once"], 2
            )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
