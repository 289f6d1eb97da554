"""The first k tokens of each block, labels sharing the budget of the block they announce."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import cut
from tokendance_engine.reuse.selection import SHORT, Reused, blocks, first_of_each, reused


def marked(found: list[Reused], k: int, size: int) -> list[int]:
    mask = first_of_each(found, k, size)
    assert mask.dtype == np.bool_
    assert mask.shape == (size,)
    return [int(position) for position in np.flatnonzero(mask)]


def test_blocks_apart_get_their_own_budget() -> None:
    assert marked([Reused(2, 30, 0), Reused(40, 43, 50)], 4, 60) == [2, 3, 4, 5, 40, 41, 42]


def test_a_label_shares_the_budget_of_the_block_right_after_it() -> None:
    assert marked([Reused(0, 3, 0), Reused(3, 40, 3)], 5, 60) == [0, 1, 2, 3, 4]


def test_several_labels_in_a_row_share_one_budget() -> None:
    assert marked([Reused(0, 2, 0), Reused(2, 4, 9), Reused(4, 40, 3)], 5, 60) == [0, 1, 2, 3, 4]


def test_a_label_that_uses_up_the_budget_leaves_none() -> None:
    assert marked([Reused(0, 8, 0), Reused(8, 40, 8)], 5, 60) == [0, 1, 2, 3, 4]


def test_a_block_longer_than_a_label_starts_a_new_budget_for_what_follows() -> None:
    long = SHORT + 1
    assert marked([Reused(0, long, 0), Reused(long, 40, long)], 2, 60) == [0, 1, long, long + 1]


def test_a_label_with_a_gap_after_it_is_a_block_of_its_own() -> None:
    assert marked([Reused(0, 3, 0), Reused(4, 40, 3)], 2, 60) == [0, 1, 4, 5]


def test_a_label_and_what_it_announces_are_one_block() -> None:
    assert blocks([]) == 0
    assert blocks([Reused(0, 3, 0), Reused(3, 40, 3), Reused(40, 90, 40), Reused(95, 97, 90)]) == 3


@st.composite
def found_segments(draw: st.DrawFn) -> tuple[list[Reused], int]:
    at, found = 0, []
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=8)):
        found.append(Reused(at + gap, at + gap + length, 1000 + at))
        at += gap + length
    return found, at + draw(st.integers(0, 5))


@given(found_segments(), st.integers(0, 50))
def test_only_heads_of_blocks_are_marked_and_never_more_than_the_budget(
    case: tuple[list[Reused], int], k: int
) -> None:
    found, size = case
    chosen = set(marked(found, k, size))
    assert chosen <= {p for s in found for p in range(s.start, s.end)}
    for segment in found:
        inside = sorted(p for p in chosen if segment.start <= p < segment.end)
        assert inside == list(range(segment.start, segment.start + len(inside))), "not a head"
        assert len(inside) <= k
    starts = [b for a, b in itertools.pairwise(found) if a.end < b.start] + found[:1]
    assert all(len([p for p in chosen if s.start <= p < s.end]) == min(k, s.end - s.start) for s in starts)


def test_segments_the_master_lacks_are_left_out() -> None:
    _, segments = cut([(1, 2), (3,), (4, 5, 6)])
    assert reused(segments, [7, None, 20]) == [Reused(0, 2, 7), Reused(3, 6, 20)]
