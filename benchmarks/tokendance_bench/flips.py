"""Does reuse change what a debater decides? Decisions after the recorded reasoning, against full prefill.

Every agent's prompt is followed by what it wrote before it said its answer, so all systems decide from the same words.
In an exam the decision is the likeliest option at that place; in mathematics, the likeliest token at each place of the
recorded result. A decision that differs from full prefill's is a flip. The floor is what full prefill itself flips when
its requests come in another order.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokendance_sdk.workload import Workload, load_workload

from tokendance_bench import stats
from tokendance_bench.inproc import Engine, Outcome
from tokendance_bench.options import Tokenizing, positive, workload_of
from tokendance_bench.recorded_answers import OPTIONS, Answer, option, result
from tokendance_bench.run import Run

FINDERS: dict[str, Callable[[str], Answer | None]] = {"debate-math4": result, "debate-mmlu7": option}
"""Workload -> what finds the answer in a recorded output."""
CONTEXT = "flips"
"""`context` of this part's rows."""
RESULT_TOKENS = 8
"""So many tokens of a recorded result are compared, from its first one on."""
QUICK_ROUNDS = 2
QUICK_SYSTEM = "balanced"

Decision = tuple[int, ...]
Systems = Mapping[str, Mapping[str, Any] | None]
"""Name -> fields of its round tag; None: full prefill, its requests in reverse order (the floor)."""


@dataclass(frozen=True, slots=True)
class Question:
    """Where one agent decides.

    Attributes:
        before: token ids of its recorded reasoning up to there.
        forced: token ids that follow; each one's place is looked at.
        allowed: token ids among which it decides, in the order of `OPTIONS`; none: all.
    """

    before: list[int]
    forced: list[int]
    allowed: tuple[int, ...] = ()

    def decision(self, logprobs: torch.Tensor) -> Decision:
        """What was decided, from log-probabilities, float32 [len(forced), vocab]."""
        if self.allowed:
            return (int(logprobs[0, list(self.allowed)].argmax()),)
        return tuple(logprobs.argmax(-1).tolist())


def add_options(options: argparse.ArgumentParser) -> None:
    """This part's options."""
    options.add_argument(
        "--flip-workloads",
        nargs="+",
        default=list(FINDERS),
        choices=FINDERS,
        help="debates with recorded decisions; all their agents take part",
    )
    options.add_argument(
        "--flip-rounds",
        type=positive,
        help="the first so many rounds that read others; default: all recorded ones",
    )


def rounds_of(args: argparse.Namespace, recorded: Workload) -> range:
    """The rounds that are asked for: every one that has shared blocks, or the first so many of them."""
    most = args.flip_rounds or (QUICK_ROUNDS if args.quick else len(recorded.rounds))
    return range(1, min(1 + most, len(recorded.rounds)))


def systems_of(args: argparse.Namespace, systems: Systems) -> Systems:
    """All of them; with `--quick` the floor and what the headline is about."""
    return {n: tag for n, tag in systems.items() if not args.quick or tag is None or n == QUICK_SYSTEM}


def steps(args: argparse.Namespace, systems: Systems) -> int:
    """How many rows `measure` will add."""
    rounds = [rounds_of(args, load_workload(name)) for name in args.flip_workloads]
    return sum(map(len, rounds)) * len(systems_of(args, systems))


def measure(engine: Engine, args: argparse.Namespace, systems: Systems, run: Run) -> None:
    """All rounds of all workloads; one row per workload, round and system."""
    for name in args.flip_workloads:
        recorded = load_workload(name)
        args = argparse.Namespace(
            **{**vars(args), "workload": name, "agents": len(recorded.agents), "block_tokens": 0}
        )
        # Cut for all its rounds whichever are asked for, so that a short run asks what a long one does.
        workload = workload_of(args, engine, len(recorded.rounds))
        for number in rounds_of(args, recorded):
            run.doing(f"{name}, round {number}, decisions")
            for row in round_rows(engine, workload, number, systems_of(args, systems)):
                run.add(row)


def round_rows(engine: Engine, workload: Workload, number: int, systems: Systems) -> list[dict[str, Any]]:
    """One round: flips of every system against full prefill, histories cached on both sides."""
    outputs = workload.rounds[number].outputs
    asked = [question(engine, outputs[agent.id], FINDERS[workload.name]) for agent in workload.agents]
    prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
    # Who says no answer is in the round all the same: the others read what it wrote, and share with it.
    forced = [each.forced if each else [prompts[0].tokens[0]] for each in asked]
    told = [
        replace(prompt, tokens=prompt.tokens + each.before) if each else prompt
        for prompt, each in zip(prompts, asked, strict=True)
    ]

    def served(tag: Mapping[str, Any] | None, backwards: bool = False) -> Outcome:
        engine.forget()
        engine.cache_histories(prompts)
        way = slice(None, None, -1 if backwards else 1)
        outcome = engine.round(told[way], None if tag is None else dict(tag), forced[way])
        engine.scheduler.check()
        return replace(outcome, logprobs=outcome.logprobs[way], reports=outcome.reports[way])

    exact = decisions(asked, served(None))
    rows = []
    for system, tag in systems.items():
        if tag is None:
            outcome = served(None, backwards=True)
        else:
            outcome = served({"round_id": f"flips:{workload.name}:{number}", **tag})
        found = decisions(asked, outcome)
        reports = [report for report in outcome.reports if report]
        rows.append(
            {
                "workload": workload.name,
                "round": number,
                "level": system,
                "context": CONTEXT,
                "agents": len(prompts),
                "decisions": len(exact),
                "flips": sum(a != b for a, b in zip(exact, found, strict=True)),
                "no_answer": len(asked) - len(exact),
                "reused": round(statistics.mean(r["reused_tokens"] for r in reports)) if reports else 0,
            }
        )
    return rows


def question(engine: Tokenizing, text: str, find: Callable[[str], Answer | None]) -> Question | None:
    """Where the writer of `text` decides; None if it says no answer, or one that this tokenizer cannot ask for.

    That is an option whose letter is not a token of its own.
    """
    answer = find(text)
    if answer is None:
        return None
    head = text[: answer.start]
    if find is not option:
        whole = engine.encode(head + answer.text)
        start = _common(engine.encode(head), whole)
        return Question(whole[:start], whole[start : start + RESULT_TOKENS]) if start < len(whole) else None
    said = [engine.encode(head + letter) for letter in OPTIONS]
    if len({len(each) for each in said}) > 1 or len({tuple(each[:-1]) for each in said}) > 1:
        return None
    allowed = tuple(each[-1] for each in said)
    return Question(said[0][:-1], [allowed[OPTIONS.index(answer.text)]], allowed)


def decisions(asked: Sequence[Question | None], outcome: Outcome) -> list[Decision]:
    """What those decided who were asked, in their order."""
    return [each.decision(lp) for each, lp in zip(asked, outcome.logprobs, strict=True) if each is not None]


def headline(rows: Sequence[Mapping[str, Any]], floor: str) -> dict[str, Any]:
    """Flips per system, in percentage points over the floor's, over all rounds and workloads.

    Args:
        floor: `level` of the floor's rows.

    Returns:
        `flip_points_over_floor_SYSTEM`, and as `..._interval` the 95 % Wilson interval of the system's share, from
        which the floor's points (taken as given) are deducted; per workload `flips_SYSTEM_WORKLOAD` as "3 of 92";
        how many decisions there were, and how many outputs said no answer.
    """
    mine = [row for row in rows if row["context"] == CONTEXT]
    found: dict[str, Any] = {}
    points = {level: _total(mine, level) for level in dict.fromkeys(row["level"] for row in mine)}
    still, of = points.get(floor, (0, 0))
    if not of:
        return found
    base = 100 * still / of
    at_floor = [row for row in mine if row["level"] == floor]
    found |= {
        "flip_decisions": of,
        "flip_no_answer": sum(row["no_answer"] for row in at_floor),
        "flip_points_floor": round(base, 2),
    }
    for level, (flips, decided) in points.items():
        if level == floor or not decided:
            continue
        key = level.replace(" ", "_")
        low, high = stats.wilson(flips, decided)
        found[f"flip_points_over_floor_{key}"] = round(100 * flips / decided - base, 2)
        found[f"flip_points_over_floor_{key}_interval"] = [
            round(100 * low - base, 2),
            round(100 * high - base, 2),
        ]
        for workload in dict.fromkeys(row["workload"] for row in mine):
            here, all_here = _total([row for row in mine if row["workload"] == workload], level)
            if all_here:
                found[f"flips_{key}_{workload}"] = f"{here} of {all_here}"
    return found


def _total(rows: Sequence[Mapping[str, Any]], level: str) -> tuple[int, int]:
    """(flips, decisions) of a level."""
    mine = [row for row in rows if row["level"] == level]
    return sum(row["flips"] for row in mine), sum(row["decisions"] for row in mine)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
