"""Decisions after recorded reasoning, and what their flips say."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tokendance_bench import fidelity, flips
from tokendance_bench.inproc import Engine, Outcome
from tokendance_bench.recorded_answers import option, result
from tokendance_bench.tokenizing import Prompt
from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.workload import load_workload


class Letters:
    """A tokenizer of single characters, but for ` B` and `{\\`, which are tokens of their own."""

    tokenizer = None

    def encode(self, text: str) -> list[int]:
        text = text.replace(" B", "\x00").replace("{\\", "\x01")
        return [ord(letter) for letter in text]


def test_an_option_is_decided_among_the_letters_where_one_is_said() -> None:
    asked = flips.question(Letters(), "It is so. The answer is (C) 3.", option)
    assert asked is not None
    assert "".join(map(chr, asked.before)) == "It is so. The answer is ("
    assert (asked.forced, asked.allowed) == ([ord("C")], tuple(map(ord, "ABCD")))
    logprobs = torch.full((1, 128), -9.0)
    logprobs[0, ord("x")], logprobs[0, ord("D")] = -0.1, -2.0
    assert asked.decision(logprobs) == (3,)


def test_a_letter_that_is_no_token_of_its_own_is_not_asked_for() -> None:
    assert flips.question(Letters(), "Therefore, option B is the correct answer.", option) is None
    assert flips.question(Letters(), "I cannot tell.", option) is None


def test_a_result_is_decided_token_by_token() -> None:
    asked = flips.question(Letters(), r"so \boxed{571}.", result)
    assert asked is not None
    assert "".join(map(chr, asked.forced)) == "571"
    logprobs = torch.full((3, 128), -9.0)
    for place, token in enumerate("592"):
        logprobs[place, ord(token)] = -0.1
    assert asked.decision(logprobs) == tuple(map(ord, "592"))


def test_a_token_that_reaches_into_the_result_is_its_first() -> None:
    asked = flips.question(Letters(), r"so \boxed{\frac12}.", result)
    assert asked is not None
    assert asked.forced[0] == 1
    assert "".join(map(chr, asked.before)) == r"so \boxed"


def test_a_long_result_is_compared_at_its_first_tokens() -> None:
    asked = flips.question(Letters(), r"so \boxed{123456789123}.", result)
    assert asked is not None
    assert len(asked.forced) == flips.RESULT_TOKENS


class Decided(Letters):
    """Stands in for an engine: what it decides follows from the tokens; tagged, an economist always says D."""

    def __init__(self) -> None:
        self.scheduler = SimpleNamespace(check=lambda: None)
        self.asked: list[tuple[list[str], Any]] = []
        self.histories = 0

    def prompt(self, prompt: RoundPrompt) -> Prompt:
        return Prompt(prompt.agent, self.encode(prompt.agent), [1])

    def forget(self) -> None:
        self.histories = 0

    def cache_histories(self, prompts: Sequence[Prompt]) -> None:
        self.histories = len(prompts)

    def round(self, prompts: Sequence[Prompt], tag: Any, answers: Sequence[list[int]]) -> Outcome:
        assert self.histories == len(prompts)
        self.asked.append(([prompt.agent for prompt in prompts], tag))
        logprobs = []
        for prompt, answer in zip(prompts, answers, strict=True):
            steps = torch.full((len(answer), 128), -9.0)
            always = tag is not None and prompt.agent == "Economist"
            steps[:, ord("D") if always else ord("ABC"[sum(prompt.tokens) % 3])] = -0.1
            logprobs.append(steps)
        reports = [None if tag is None else {"reused_tokens": 10} for _ in prompts]
        return Outcome(0.0, [[] for _ in prompts], reports, logprobs)


def test_a_round_compares_every_agent_with_itself_in_whatever_order_it_came() -> None:
    engine, workload = Decided(), load_workload("debate-mmlu7")
    systems: flips.Systems = {"floor": None, "balanced": {"fidelity": "balanced"}}
    floor, balanced = flips.round_rows(cast(Engine, engine), workload, 3, systems)
    assert (floor["decisions"], floor["flips"], floor["no_answer"], floor["reused"]) == (7, 0, 0, 0)
    assert (balanced["decisions"], balanced["flips"], balanced["reused"]) == (7, 1, 10)
    orders = [agents for agents, _ in engine.asked]
    assert orders == [orders[0], orders[0][::-1], orders[0]]
    assert [tag and tag["fidelity"] for _, tag in engine.asked] == [None, None, "balanced"]


def test_who_says_no_answer_takes_part_and_is_counted() -> None:
    engine, workload = Decided(), load_workload("debate-mmlu7")
    (row,) = flips.round_rows(cast(Engine, engine), workload, 2, {"floor": None})
    assert (row["agents"], row["decisions"], row["no_answer"]) == (7, 4, 3)


def row(
    level: str, workload: str, number: int, decisions: int, flipped: int, silent: int = 1
) -> dict[str, Any]:
    return {
        "context": "flips", "level": level, "workload": workload, "round": number, "decisions": decisions,
        "flips": flipped, "no_answer": silent,
    }  # fmt: skip


def test_flips_are_points_over_what_full_prefill_flips_itself() -> None:
    rows = [
        row(fidelity.FLOOR, "a", 1, 50, 1),
        row("balanced", "a", 1, 50, 3),
        row(fidelity.FLOOR, "b", 1, 50, 0),
        row("balanced", "b", 1, 50, 2),
        {"context": "single", "level": "balanced", "kl": 0.1},
    ]
    found = flips.headline(rows, fidelity.FLOOR)
    assert found["flip_points_over_floor_balanced"] == 4.0
    low, high = found["flip_points_over_floor_balanced_interval"]
    assert low == pytest.approx(2.15 - 1, abs=0.02)  # Wilson of 5 in 100: 2.15 % to 11.18 %
    assert high == pytest.approx(11.18 - 1, abs=0.02)
    assert (found["flip_decisions"], found["flip_no_answer"], found["flip_points_floor"]) == (100, 2, 1.0)
    assert found["flips_balanced_a"] == "3 of 50"
    assert "flip_points_over_floor_full_prefill,_other_order" not in found


def test_without_a_floor_there_is_no_headline() -> None:
    assert flips.headline([row("balanced", "a", 1, 5, 1)], fidelity.FLOOR) == {}
    assert flips.headline([row(fidelity.FLOOR, "a", 1, 0, 0)], fidelity.FLOOR) == {}


def test_rounds_without_shared_blocks_are_left_out() -> None:
    recorded = load_workload("debate-mmlu7")
    assert flips.rounds_of(Namespace(flip_rounds=None, quick=False), recorded) == range(1, 24)
    assert flips.rounds_of(Namespace(flip_rounds=2, quick=True), recorded) == range(1, 3)
    assert flips.rounds_of(Namespace(flip_rounds=99, quick=False), recorded) == range(1, 24)


def test_the_quick_way_measures_the_headline_alone() -> None:
    systems: flips.Systems = {fidelity.FLOOR: None, "balanced": {}, "fast": {}}
    args = Namespace(flip_rounds=None, quick=True, flip_workloads=["debate-mmlu7", "debate-math4"])
    assert list(flips.systems_of(args, systems)) == [fidelity.FLOOR, "balanced"]
    assert flips.steps(args, systems) == 2 * flips.QUICK_ROUNDS * 2
    args.quick, args.flip_rounds = False, 3
    assert flips.steps(args, systems) == 2 * 3 * 3
