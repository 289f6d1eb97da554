"""Positions of a context: indices, plus a shift that only grows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.segments.frame import IN_PLACE, Frame

SIZE = 60


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    frame, at, shift = IN_PLACE, -1, 0
    for gap, growth in draw(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 40)), max_size=4)):
        at, shift = at + gap, shift + growth
        frame = frame.stepped(at, shift)
    return frame


def positions(frame: Frame) -> list[int]:
    return [int(p) for p in frame.at(np.arange(SIZE))]


@given(frames())
def test_positions_ascend_and_skip_exactly_where_the_shift_grows(frame: Frame) -> None:
    at = positions(frame)
    assert at == [i + frame.shift_at(i) for i in range(SIZE)]
    assert all(b > a for a, b in itertools.pairwise(at))
    jumps = {i for i in range(1, SIZE) if at[i] != at[i - 1] + 1}
    assert jumps == {first for first, _ in frame.steps if first > 0}
    assert at[-1] == SIZE - 1 + frame.shift


@given(frames(), st.integers(0, SIZE), st.integers(0, SIZE))
def test_pieces_tile_a_range_and_each_has_one_shift(frame: Frame, start: int, end: int) -> None:
    pieces = frame.pieces(start, end)
    told = [(i, shift) for a, b, shift in pieces for i in range(a, b)]
    assert told == [(i, frame.shift_at(i)) for i in range(start, end)]
    assert all(one[2] != two[2] for one, two in itertools.pairwise(pieces)), "cut where nothing changes"


@given(frames(), st.integers(1, SIZE))
def test_what_is_before_an_index_keeps_its_positions_and_all_after_follows_on(
    frame: Frame, index: int
) -> None:
    old, new = positions(frame), positions(frame.before(index))
    assert new[:index] == old[:index]
    assert new[index:] == list(range(old[index - 1] + 1, old[index - 1] + 1 + SIZE - index))


@given(frames(), st.integers(1, 20), st.integers(0, 30))
def test_a_step_moves_only_what_comes_from_its_index_on(frame: Frame, gap: int, growth: int) -> None:
    index = (frame.steps[-1][0] if frame.steps else -1) + gap
    stepped = frame.stepped(index, frame.shift + growth)
    assert positions(stepped)[:index] == positions(frame)[:index]
    assert stepped.shift_at(index) == stepped.shift == frame.shift + growth
    assert (stepped is frame) == (growth == 0), "a step that skips nothing is none"


@pytest.mark.parametrize(("index", "shift"), [(10, 40), (9, 40), (20, 31), (20, -1)])
def test_a_step_back_or_down_is_refused_with_what_it_cannot_follow(index: int, shift: int) -> None:
    frame = IN_PLACE.stepped(10, 32)
    with pytest.raises(ValueError, match=rf"shift {shift} at {index} cannot follow \(\(10, 32\),\)"):
        frame.stepped(index, shift)


def test_a_context_in_place_cannot_stand_before_its_beginning() -> None:
    with pytest.raises(ValueError, match="shift -1 at 5"):
        IN_PLACE.stepped(5, -1)


def test_nothing_has_no_positions() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert Frame(((0, 5),)).at(nothing).shape == IN_PLACE.at(nothing).shape == (0,)
    assert Frame(((0, 5),)).pieces(3, 3) == []
