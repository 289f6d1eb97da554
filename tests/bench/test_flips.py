"""Decisions after recorded reasoning, and what their flips say."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from tokendance_bench import fidelity, flips
from tokendance_bench.recorded_answers import option, result
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
