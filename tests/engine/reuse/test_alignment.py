"""Bringing regions to the master's page phase and positions: what is aligned really is, and nothing else is harmed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from aligned_rounds import BLOCKS, PAGE, START, Round, make_round, rounds
from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import FILLER, Block, Prompt, cut, key_of, private
from tokendance_engine.reuse.alignment import Aligned, Aligner
from tokendance_engine.segments.filling import UNFILLED, Filling, fill, strip
from tokendance_engine.segments.frame import IN_PLACE


@given(rounds(shuffled=False))
def test_an_aligned_run_has_the_masters_page_phase_and_positions(made: Round) -> None:
    for prompt in made.prompts:
        state = made.align(prompt)
        lies = made.in_place(prompt, state)
        assert sum(lies) >= state.aligned
        assert (state.reason is None) == (state.aligned == len(lies))


@given(rounds(shuffled=True))
def test_with_other_orders_too_what_counts_as_aligned_is(made: Round) -> None:
    for prompt in made.prompts:
        state = made.align(prompt)
        assert sum(made.in_place(prompt, state)) >= state.aligned


@given(st.booleans().flatmap(lambda shuffled: rounds(shuffled)))
def test_the_users_tokens_are_all_there_in_their_order(made: Round) -> None:
    for prompt in made.prompts:
        state, (tokens, _) = made.align(prompt), cut(prompt)
        assert strip(fill(tokens, state.filling, FILLER), state.filling).tolist() == tokens.tolist()
        assert [at for at, _ in state.filling.inserts] == sorted({at for at, _ in state.filling.inserts})


@given(st.booleans().flatmap(lambda shuffled: rounds(shuffled)))
def test_positions_only_grow_by_no_more_than_allowed_and_fillers_stay_below_a_page(made: Round) -> None:
    for prompt in made.prompts:
        state = made.align(prompt)
        shifts = [0, *(shift for _, shift in state.frame.steps)]
        assert all(0 < b - a <= made.aligner.max_skipped for a, b in itertools.pairwise(shifts))
        assert all(0 < n < PAGE for _, n in state.filling.inserts)


@given(st.booleans().flatmap(lambda shuffled: rounds(shuffled)))
def test_no_prompt_begins_with_fillers(made: Round) -> None:
    """The first tokens of a context are attention sinks."""
    for prompt in made.prompts:
        assert all(at > 0 for at, _ in made.align(prompt).filling.inserts)


@given(rounds(shuffled=False), st.data())
def test_what_is_cached_already_keeps_its_fillers_and_positions(made: Round, data: st.DataObject) -> None:
    """A member that comes back, or late: part of its prompt was laid out before."""
    prompt = data.draw(st.sampled_from(made.prompts))
    before = made.align(prompt)
    size = len(cut(prompt)[0]) + before.filling.count
    cached = data.draw(st.integers(0, (size - 1) // PAGE)) * PAGE
    start = Aligned(
        Filling(tuple(i for i in before.filling.inserts if i[0] < cached)),
        before.frame.before(cached),
    )
    again = made.align(prompt, start, cached)
    assert again.filling.inserts[: len(start.filling.inserts)] == start.filling.inserts
    assert again.frame.before(cached) == start.frame
    assert all(at >= cached for at, _ in again.filling.inserts[len(start.filling.inserts) :])
    assert sum(made.in_place(prompt, again)) >= again.aligned


@given(st.integers(2, 30), st.integers(0, 30), st.integers(0, 60))
def test_a_member_that_gets_its_wish_skips_nothing(history: int, other: int, later: int) -> None:
    regions = [[BLOCKS[0], BLOCKS[1]], [BLOCKS[3]]]
    prompt = [private(0, 0, history), *regions[0], private(0, 100, other), *regions[1], (77,)]
    made = make_round(regions[:1], [prompt])
    transcript = made.transcript
    transcript.open_region(np.full(-transcript.rows % PAGE, FILLER, dtype=np.int32))
    transcript.append(key_of(BLOCKS[3]), np.array(BLOCKS[3], dtype=np.int32))
    both = Round(made.aligner, transcript, regions, [prompt])
    wish = both.wish(prompt)
    assert wish is not None
    least = transcript.regions[1] + transcript.frame.shift
    before = both.align(prompt).frame.shift
    transcript.place(max(wish, least) + later)
    state = both.align(prompt)
    assert both.in_place(prompt, state) == [True, True]
    assert state.frame.shift - before == max(least - wish, 0) + later


@given(st.lists(st.integers(0, 60), max_size=8), st.integers(0, 40), st.integers(0, 30))
def test_a_region_stands_where_most_members_reach_it_and_there_as_low_as_possible(
    wishes: list[int], least: int, max_skipped: int
) -> None:
    def reached(candidate: int) -> int:
        return sum(0 <= candidate - wish <= max_skipped for wish in wishes)

    chosen = Aligner(PAGE, max_skipped).position(wishes, least)
    assert chosen == max(range(least, 101), key=lambda c: (reached(c), -c))


def test_one_member_far_away_does_not_drag_all_others_along() -> None:
    assert Aligner(16, 512).position([100, 180, 3000, 140], 32) == 180
    assert Aligner(16, 5000).position([100, 180, 3000, 140], 32) == 3000
    assert Aligner(16, 512).position([], 32) == 32


def unequal(long: int, max_skipped: int) -> Round:
    """Histories of 10, 10 and `long` tokens before one region."""
    histories = [10, 10, long]
    prompts = [[private(m, 0, n), *BLOCKS[:2], (77,)] for m, n in enumerate(histories)]
    return make_round([BLOCKS[:2]], prompts, max_skipped)


def test_members_with_other_histories_meet_where_the_longest_ends() -> None:
    made = unequal(42, 1000)
    states = [made.align(p) for p in made.prompts]
    assert made.transcript.frame.at(np.array([8])).tolist() == [44]
    assert [s.filling.inserts for s in states] == [((10, 2),), ((10, 2),), ((42, 2),)]
    assert [s.frame.steps for s in states] == [((12, 32),), ((12, 32),), ()]


def test_a_longer_history_than_the_regions_position_is_left_with_that_reason() -> None:
    made = unequal(42, 20)
    states = [made.align(p) for p in made.prompts]
    assert [s.reason for s in states] == [None, None, "longer_history"]
    assert states[2] == Aligned(UNFILLED, IN_PLACE, 0, "longer_history")


def test_a_history_so_short_that_too_much_would_be_skipped_is_left_with_that_reason() -> None:
    made = unequal(10, 1000)
    newcomer: Prompt = [private(8, 0, 2), *BLOCKS[:2], (77,)]
    strict = Round(Aligner(PAGE, 7), made.transcript, made.regions, [newcomer])
    assert strict.align(newcomer).reason == "shorter_history"
    assert Round(Aligner(PAGE, 8), made.transcript, made.regions, [newcomer]).align(newcomer).aligned == 1


def test_a_run_shorter_than_two_pages_is_not_worth_fillers() -> None:
    short: Block = tuple(range(2 * PAGE - 1))
    made = make_round([[short]], [[private(0, 0, 10), short, (77,)]])
    assert made.align(made.prompts[0]) == START
    made.transcript.placed = 0
    assert made.wish(made.prompts[0]) is None


def test_a_region_without_a_position_yet_is_nobodys_goal() -> None:
    made = make_round([BLOCKS[:2]], [[private(0, 0, 10), *BLOCKS[:2], (77,)]])
    made.transcript.placed = 0
    assert made.align(made.prompts[0]) == START


@pytest.mark.parametrize("cached", [12, 16])
def test_of_a_region_that_began_in_cached_pages_the_rest_is_aligned(cached: int) -> None:
    """The task of the last round, say, has been computed by everybody and is now a shared text."""
    prompt: Prompt = [private(0, 0, 10), *BLOCKS[:2], (77,)]
    made = make_round([BLOCKS[:2]], [prompt])
    state = made.align(prompt, START, cached)
    at = 10 + len(BLOCKS[0])
    assert [insert for insert, _ in state.filling.inserts] == [at]
    rest = [s for s in made.found(prompt, state) if s.start >= at]
    index, row = np.arange(rest[0].start, rest[0].end), np.arange(len(BLOCKS[1])) + rest[0].row
    assert (state.frame.at(index) == made.transcript.frame.at(row)).all()
    assert ((index - row) % PAGE == 0).all()


def test_a_region_that_is_cached_but_for_less_than_two_pages_is_left_as_it_lies() -> None:
    prompt: Prompt = [private(0, 0, 10), *BLOCKS[:2], (77,)]
    made = make_round([BLOCKS[:2]], [prompt])
    assert made.align(prompt, START, 28) == START
    assert made.align(prompt, START, 40) == START


def other_order(count: int) -> Round:
    """Region 1 stands before region 0 in the second prompt, after `count` private tokens."""
    regions = [[BLOCKS[0]], [BLOCKS[1]]]
    ahead: Prompt = [private(0, 0, count), *regions[0], private(0, 20, 5), *regions[1], (77,)]
    swapped: Prompt = [private(1, 0, count), *regions[1], private(1, 20, 2), *regions[0], (77,)]
    return make_round(regions, [ahead, swapped])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_orders_that_differ_never_undo_what_was_aligned_before(count: int) -> None:
    """Fillers or skipped positions in front of region 0 would move it again."""
    made = other_order(count)
    swapped = made.prompts[1]
    state, (tokens, _) = made.align(swapped), cut(swapped)
    assert state.aligned > 0
    assert sum(made.in_place(swapped, state)) >= state.aligned
    assert state.reason is not None, "one of the two is not in place"
    assert strip(fill(tokens, state.filling, FILLER), state.filling).tolist() == tokens.tolist()


def test_a_prompt_that_begins_with_the_middle_of_a_region_gets_no_fillers_there() -> None:
    region = [BLOCKS[0], BLOCKS[1]]
    swapped: Prompt = [region[1], private(1, 0, 3), region[0], (77,)]
    made = make_round([region], [[private(0, 0, 10), *region, (77,)], swapped])
    assert made.align(swapped).filling.inserts[:1] != ((0, 1),)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=6), st.integers(0, 99)
)
def test_no_other_gap_would_give_members_fewer_fillers(starts: list[tuple[int, int]], row: int) -> None:
    aligner = Aligner(PAGE, 100)

    def fillers(gap: int) -> int:
        return sum(next(n for n in range(PAGE) if (at + n - row - gap) % PAGE == 0) for at, _ in starts)

    gap = aligner.gap(starts, row)
    assert 0 <= gap < PAGE
    assert fillers(gap) == min(map(fillers, range(PAGE)))


def test_a_region_nobody_waits_for_comes_right_after_what_precedes_it() -> None:
    assert Aligner(PAGE, 100).gap([], 13) == 0
