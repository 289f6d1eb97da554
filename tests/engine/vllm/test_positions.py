"""Shifting the positions of vLLM's own pass: in the batch's order, in place, or not at all."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.messages import Shifts
from tokendance_engine.adapters.vllm.positions import batch_order, offsets, position_buffer, shift_positions

SHIFTS = Shifts({"a": 2, "b": 3, "c": 1}, {"b": [(1, 10), (2, 40)], "c": [(1, 7)]})


def v1_runner(order: list[str], tokens: int = 16) -> Any:
    positions = torch.arange(100, 100 + tokens)
    return SimpleNamespace(positions=positions, input_batch=SimpleNamespace(req_ids=order))


def test_offsets_follow_the_order_of_the_batch_not_of_the_schedule() -> None:
    assert offsets(["a", "b", "c"], SHIFTS).tolist() == [0, 0, 10, 40, 40, 7]
    assert offsets(["c", "b", "a"], SHIFTS).tolist() == [7, 10, 40, 40, 0, 0]
    assert offsets(["b", "a", "c"], SHIFTS).dtype == np.int64


@given(st.data())
def test_every_token_gets_the_shift_of_its_own_request_in_any_order(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    tokens = {name: data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5)) for name in names}
    shifted = {name for name in names if any(tokens[name])}
    pieces = {n: [(len([*g]), s) for s, g in itertools.groupby(tokens[n])] for n in shifted}
    order = data.draw(st.permutations(names))
    shifts = Shifts({name: len(tokens[name]) for name in names}, pieces)
    assert offsets(order, shifts).tolist() == [s for name in order for s in tokens[name]]


def test_a_request_of_the_batch_that_is_not_in_this_pass_takes_no_token() -> None:
    assert offsets(["a", "resting", "b", "c"], SHIFTS).tolist() == [0, 0, 10, 40, 40, 7]


@pytest.mark.parametrize("order", [["a", "b"], ["b", "c"], [], ["a", "c", "x"]])
def test_a_batch_that_is_not_the_scheduled_one_is_refused(order: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"the batch has \d+ tokens, 6 were scheduled"):
        offsets(order, SHIFTS)


def test_positions_are_shifted_in_place_and_nothing_beyond_the_pass_is() -> None:
    runner = v1_runner(["a", "b", "c"], tokens=8)
    buffer, where = runner.positions, runner.positions.data_ptr()
    shift_positions(runner, SHIFTS)
    assert runner.positions is buffer
    assert buffer.data_ptr() == where
    assert buffer.tolist() == [100, 101, 112, 143, 144, 112, 106, 107]


def test_narrow_position_buffers_keep_their_type() -> None:
    runner = v1_runner(["a", "b", "c"])
    runner.positions = runner.positions.to(torch.int32)
    shift_positions(runner, SHIFTS)
    assert runner.positions.dtype == torch.int32
    assert runner.positions[:6].tolist() == [100, 101, 112, 143, 144, 112]


def test_a_mismatch_leaves_the_positions_alone() -> None:
    runner = v1_runner(["a", "b"])
    before = runner.positions.clone()
    with pytest.raises(RuntimeError, match="were scheduled"):
        shift_positions(runner, SHIFTS)
    assert torch.equal(runner.positions, before)


class V2Runner:
    """Keeps its positions among its input buffers and hands the step's batch on as a local of its caller."""

    def __init__(self) -> None:
        self.input_buffers = SimpleNamespace(positions=torch.arange(100, 116))

    def execute(self, order: list[str], shifts: Shifts) -> None:
        input_batch = SimpleNamespace(req_ids=order)
        self._load(shifts)
        assert input_batch.req_ids == order

    def _load(self, shifts: Shifts) -> None:
        shift_positions(self, shifts)


def test_the_v2_runners_batch_is_found_with_its_caller() -> None:
    runner = V2Runner()
    runner.execute(["c", "a", "b"], SHIFTS)
    assert runner.input_buffers.positions[:7].tolist() == [107, 101, 102, 113, 144, 145, 106]


def test_the_nearest_callers_batch_counts() -> None:
    input_batch = SimpleNamespace(req_ids=["of another step"])
    runner = V2Runner()
    runner.execute(["a", "b", "c"], SHIFTS)
    assert input_batch.req_ids == ["of another step"]
    assert runner.input_buffers.positions[5].item() == 105 + 7


def test_without_a_batch_anywhere_shifting_is_refused() -> None:
    with pytest.raises(RuntimeError, match="batch was not found; positions cannot be shifted"):
        batch_order(V2Runner())


@pytest.mark.parametrize(
    "runner",
    [
        SimpleNamespace(),
        SimpleNamespace(positions=[1, 2]),
        SimpleNamespace(positions=torch.zeros(3, 8)),
        SimpleNamespace(input_buffers=SimpleNamespace()),
    ],
    ids=["nothing", "a list", "several rows (M-RoPE)", "empty buffers"],
)
def test_a_runner_with_other_positions_is_not_supported(runner: Any) -> None:
    assert position_buffer(runner) is None
    with pytest.raises(RuntimeError, match="no position buffer"):
        shift_positions(runner, SHIFTS)
