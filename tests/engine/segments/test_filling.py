"""Fillers put in, taken out, and counted around, without ever changing what the user sent."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import FILLER, cut
from tokendance_engine.segments.filling import UNFILLED, Filling, fill, moved, strip
from tokendance_engine.segments.key import Tokens

Case = tuple[Tokens, Filling]


def filling_of(places: list[tuple[int, int]]) -> Filling:
    """Fillers before these user indices, given as (index, how many), ascending."""
    made = UNFILLED
    for index, count in places:
        made = made.plus(index + made.count, count)
    return made


def places(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    one = st.tuples(st.integers(0, size), st.integers(0, 5))
    return st.lists(one, max_size=4).map(sorted)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # The user's own text may hold the filler's token too.
    tokens = draw(st.lists(st.sampled_from([1, 2, 3, FILLER]), max_size=30))
    return np.array(tokens, dtype=np.int32), filling_of(draw(places(len(tokens))))


@given(cases())
def test_what_is_filled_and_stripped_is_what_it_was(case: Case) -> None:
    tokens, filling = case
    filled = fill(tokens, filling, FILLER)
    assert filled.dtype == np.int32
    assert len(filled) == len(tokens) + filling.count
    assert strip(filled, filling).tolist() == tokens.tolist()
    assert all(filled[at + i] == FILLER for at, n in filling.inserts for i in range(n))


@given(cases(), st.lists(st.integers(0, 9), max_size=10))
def test_an_answer_after_a_filled_prompt_is_not_stripped(case: Case, answer: list[int]) -> None:
    tokens, filling = case
    filled = np.concatenate([fill(tokens, filling, FILLER), np.array(answer, dtype=np.int32)])
    assert strip(filled, filling).tolist() == [*tokens.tolist(), *answer]


@given(cases())
def test_every_token_that_is_no_filler_is_found_at_the_users_index(case: Case) -> None:
    tokens, filling = case
    filled = fill(tokens, filling, FILLER)
    fillers = {at + i for at, n in filling.inserts for i in range(n)}
    own = [i for i in range(len(filled)) if i not in fillers]
    assert [filling.to_user(i) for i in own] == list(range(len(tokens)))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=6), st.data())
def test_moved_segments_begin_and_end_with_their_own_tokens(
    blocks: list[list[int]], data: st.DataObject
) -> None:
    tokens, segments = cut(blocks)
    filling = filling_of(data.draw(places(len(tokens))))
    filled = fill(tokens, filling, FILLER)
    fillers = {at + i for at, n in filling.inserts for i in range(n)}
    for old, new in zip(segments, moved(segments, filling), strict=True):
        assert new.key == old.key
        assert not {new.start, new.end - 1} & fillers
        own = [i for i in range(new.start, new.end) if i not in fillers]
        assert filled[own].tolist() == tokens[old.start : old.end].tolist()
        assert (filling.to_user(new.start), filling.to_user(new.end)) == (old.start, old.end)


def test_fillers_before_a_segment_move_it_and_belong_to_nobody() -> None:
    _, segments = cut([(1, 2), (3, 4, 5), (6,)])
    filling = Filling(((2, 3), (8, 1)))
    assert [(s.start, s.end) for s in moved(segments, filling)] == [(0, 2), (5, 8), (9, 10)]


@given(cases(), st.integers(0, 30), st.lists(st.integers(4, 9), max_size=10))
def test_a_prompt_with_a_common_beginning_lies_as_the_old_one_did_up_to_where_they_part(
    case: Case, common: int, rest: list[int]
) -> None:
    old, filling = case
    common = min(common, len(old))
    new = np.concatenate([old[:common], np.array(rest, dtype=np.int32)])
    usable = filling.usable(common)
    together = common + usable.count
    assert fill(new, usable, FILLER)[:together].tolist() == fill(old, filling, FILLER)[:together].tolist()
    assert usable.inserts == filling.inserts[: len(usable.inserts)]
    assert all(at + n < together for at, n in usable.inserts), "fillers with nothing in common after them"
    left = filling.inserts[len(usable.inserts) :]
    assert all(filling.to_user(at) >= common for at, _ in left), "usable fillers were left out"


def test_no_fillers_change_nothing() -> None:
    assert UNFILLED.plus(7, 0) is UNFILLED
    assert UNFILLED.count == 0
    tokens, segments = cut([(1, 2), (3,)])
    assert fill(tokens, UNFILLED, FILLER).tolist() == strip(tokens, UNFILLED).tolist() == [1, 2, 3]
    assert moved(segments, UNFILLED) == segments
