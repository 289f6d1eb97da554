"""How far approximate reuse is from full prefill: KL and top-1 over recorded answers, and drift over rounds.

Answers are forced to the recorded tokens, so every system is asked for the same next-token distributions. The
noise floor is plain vLLM against itself with another order of requests.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.workload import Workload

from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Outcome, Prompt, divergence
from tokendance_bench.options import model_of, parser, workload_of
from tokendance_bench.results import print_rows, write_results

SYSTEMS: dict[str, dict[str, Any]] = {
    "balanced": {"fidelity": "balanced"},
    "fast": {"fidelity": "fast"},
    "balanced copy": {"fidelity": "balanced", "placement": "copy"},
    "fast copy": {"fidelity": "fast", "placement": "copy"},
}
"""What is compared with full prefill; pages are shared where members can be aligned, unless `copy` is asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("fidelity", __doc__ or "", "ga-village10-newcomers", 5)
    options.add_argument("--round", type=int, default=4, help="the recorded round that is asked for")
    options.add_argument("--answer-tokens", type=int, default=32, help="forced answer tokens")
    options.add_argument(
        "--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="what to compare"
    )
    options.add_argument(
        "--drift-workloads",
        nargs="+",
        default=["ga-ville3-valentine"],
        help="transcript context over all rounds",
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
    options.add_argument("--skip", choices=("single", "drift"), help="leave one half out")
    args = options.parse_args(argv)
    engine = Engine(model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=8192)
    rows: list[dict[str, Any]] = []
    headline: dict[str, Any] = {}
    if args.skip != "single":
        workload = workload_of(args, engine, args.round + 1)
        headline |= {"workload": workload.name, "cut": workload.cut.describe() if workload.cut else "uncut"}
        headline |= single(engine, workload, args.round, args.systems, args.answer_tokens, rows)
    if args.skip != "drift":
        args.agents, args.block_tokens = args.drift_agents, args.drift_block_tokens
        args.history_tokens = args.drift_history_tokens
        for name in args.drift_workloads:
            args.workload = name
            workload = workload_of(args, engine, args.drift_rounds + 1)
            headline |= drift(engine, workload, args.systems, args.answer_tokens, rows, args.drift_uneven)
            write_results(args.out, headline, rows, environment(model=model_of(args), dtype=args.dtype))
    path = write_results(args.out, headline, rows, environment(model=model_of(args), dtype=args.dtype))
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def single(
    engine: Engine,
    workload: Workload,
    number: int,
    systems: Sequence[str],
    answer_tokens: int,
    rows: list[dict[str, Any]],
) -> dict[str, float]:
    """One round: every system against plain vLLM."""
    prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
    answers = [engine.encode(workload.rounds[number].outputs[a.id])[:answer_tokens] for a in workload.agents]
    engine.forget()
    engine.cache_histories(prompts)
    exact = engine.round(prompts, None, answers)
    engine.forget()
    again = engine.round(prompts[::-1], None, answers[::-1])
    headline = {"kl_noise_floor": round(divergence(exact.logprobs, again.logprobs[::-1])[0], 6)}
    for system in systems:
        engine.forget()
        engine.cache_histories(prompts)
        outcome = engine.round(prompts, {"round_id": f"bench:{number}", **SYSTEMS[system]}, answers)
        row = _row(workload.name, number, system, exact, outcome)
        rows.append(row)
        print_rows(f"round {number}, {system}", [row])
        key = system.replace(" ", "_")
        headline |= {f"kl_{key}": row["kl"], f"top1_{key}": row["top1"]}
    return headline


def drift(
    engine: Engine,
    workload: Workload,
    systems: Sequence[str],
    answer_tokens: int,
    rows: list[dict[str, Any]],
    uneven: int = 0,
) -> dict[str, Any]:
    """Contexts that keep every round, approximate history under each next round; KL per round.

    Returns:
        Per system the mean, the worst round, and the last three rounds over the first three.
    """
    plain = Transcript(engine, workload, answer_tokens, uneven)
    engine.forget()
    exact = [plain.play(number, None) for number in range(1, len(workload.rounds))]
    found: dict[str, Any] = {}
    for system in systems:
        engine.forget()
        ours = Transcript(engine, workload, answer_tokens, uneven)
        series = []
        for number in range(1, len(workload.rounds)):
            outcome = ours.play(number, {"round_id": f"drift:{number}", **SYSTEMS[system]})
            row = _row(workload.name, number, f"{system}, transcript", exact[number - 1], outcome)
            rows.append(row)
            series.append(row["kl"])
            print_rows(f"drift, round {number}, {system}", [row])
        few = min(3, max(1, len(series) // 2))
        key = f"{workload.name}_{system.replace(' ', '_')}"
        found |= {
            f"mean_kl_{key}": round(statistics.mean(series), 5),
            f"max_kl_{key}": max(series),
            f"drift_{key}": round(statistics.mean(series[-few:]) / statistics.mean(series[:few]), 3),
        }
    return found


class Transcript:
    """Conversations that keep every round: history, then each round's blocks, task and own answer."""

    def __init__(self, engine: Engine, workload: Workload, answer_tokens: int, uneven: int = 0) -> None:
        self._engine = engine
        self._workload = workload
        self._answer_tokens = answer_tokens
        self._history: dict[str, Any] = {
            a.id: shortened(a.history, uneven * i) for i, a in enumerate(workload.agents)
        }

    def play(self, number: int, tag: dict[str, Any] | None) -> Outcome:
        """One round with forced answers, which then stand in every agent's history."""
        prompts: list[Prompt] = []
        answers: list[list[int]] = []
        for agent in self._workload.agents:
            prompt = RoundPrompt.assemble(
                agent.id,
                self._history[agent.id],
                self._workload.shared(number),
                task=self._workload.rounds[number].task,
                system=agent.system if number == 1 else None,
            )
            prompts.append(self._engine.prompt(prompt))
            recorded = self._engine.encode(self._workload.rounds[number].outputs[agent.id])[
                : self._answer_tokens
            ]
            answers.append(recorded)
            self._history[agent.id] = prompt.answered(self._engine.tokenizer.decode(recorded))
        return self._engine.round(prompts, tag, answers)


def shortened(history: Sequence[str], words: int) -> list[str]:
    """A history without the first words of its longest text."""
    longest = max(range(len(history)), key=lambda i: len(history[i]), default=None)
    return [" ".join(text.split(" ")[words:]) if i == longest else text for i, text in enumerate(history)]


def _row(workload: str, number: int, level: str, exact: Outcome, outcome: Outcome) -> dict[str, Any]:
    kl, top = divergence(exact.logprobs, outcome.logprobs)
    reports = [r for r in outcome.reports if r is not None]
    return {
        "workload": workload,
        "round": number,
        "level": level,
        "agents": len(reports),
        "cached": round(statistics.mean(r["cached_tokens"] for r in reports)),
        "reused": round(statistics.mean(r["reused_tokens"] for r in reports)),
        "shared": round(statistics.mean(r["shared_tokens"] for r in reports)),
        "computed": round(statistics.mean(r["recomputed_tokens"] + r["fresh_tokens"] for r in reports)),
        "fillers": round(statistics.mean(r["filler_tokens"] for r in reports)),
        "skipped": round(statistics.mean(r["skipped_positions"] for r in reports)),
        "kl": round(kl, 5),
        "top1": round(top, 4),
    }


if __name__ == "__main__":
    raise SystemExit(main())
