"""A plan says for every promised token, exactly once, where its KV comes from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.reuse.backends import Backend, make_backend
from tokendance_engine.reuse.plan import Plan, make_plan, runs_of
from tokendance_engine.reuse.selection import Reused

PAGE = 16
Case = tuple[int, int, list[Reused], int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """(prompt size, cached, reused segments, tail); rows of neighbours may follow on or jump."""
    at, row, found = 0, draw(st.integers(1, 9)), []
    for gap, length, jump in draw(
        st.lists(
            st.tuples(st.sampled_from([0, 0, 1, 7, 30]), st.integers(1, 60), st.sampled_from([0, 0, 1, 200])),
            max_size=6,
        )
    ):
        found.append(Reused(at + gap, at + gap + length, row + jump))
        at, row = at + gap + length, row + jump + length
    size = at + draw(st.integers(0 if at else 1, 40))
    cached = draw(st.integers(0, (size - 1) // PAGE)) * PAGE
    return size, cached, found, draw(st.sampled_from([0, 1, 8, 64]))


backends = st.builds(
    lambda name, first: make_backend(name, first, {}), st.sampled_from(["master", "all"]), st.integers(0, 40)
)


def restored(plan: Plan) -> dict[int, int]:
    """prompt position -> master row; fails if a position is restored twice."""
    pairs = [(pos + i, row + i) for row, pos, n in plan.restore.tolist() for i in range(n)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def computed(plan: Plan) -> list[int]:
    return [p for start, end in plan.compute.tolist() for p in range(start, end)]


@given(cases(), backends)
def test_restores_and_runs_are_disjoint_and_tile_what_is_promised(case: Case, backend: Backend) -> None:
    size, cached, found, tail = case
    plan = make_plan(size, cached, found, backend, tail)
    assert (plan.cached, plan.end) == (cached, size - 1)
    assert sorted([*restored(plan), *computed(plan)]) == list(range(cached, size - 1))
    assert plan.promised == plan.reused + plan.selected + plan.fresh
    assert plan.reused == len(restored(plan))
    assert plan.computed == len(computed(plan))
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(plan.compute.tolist())]
    assert all(gap > 0 for gap in gaps), "runs that touch are one run"
    assert all(n > 0 for n in plan.restore[:, 2])


@given(cases(), backends)
def test_restored_positions_get_the_row_that_holds_their_token(case: Case, backend: Backend) -> None:
    size, cached, found, tail = case
    row_of = {p: s.row + p - s.start for s in found for p in range(s.start, s.end)}
    for position, row in restored(make_plan(size, cached, found, backend, tail)).items():
        assert row == row_of[position]


@given(cases(), backends)
def test_the_tail_of_the_shared_text_and_all_after_it_is_fresh(case: Case, backend: Backend) -> None:
    size, cached, found, tail = case
    plan = make_plan(size, cached, found, backend, tail)
    start = max(found[-1].start, found[-1].end - tail) if found else 0
    fresh_after = list(range(max(start, cached), size - 1))
    assert [p for p in computed(plan) if p >= start] == fresh_after
    assert all(p < start for p in restored(plan))
    known = {p for s in found for p in range(s.start, s.end) if p < start}
    assert plan.fresh == len([p for p in range(cached, size - 1) if p not in known])


@given(cases(), backends)
def test_approximate_is_everything_from_the_first_restored_position(case: Case, backend: Backend) -> None:
    size, cached, found, tail = case
    plan = make_plan(size, cached, found, backend, tail)
    assert plan.approximate_from == min(restored(plan), default=None)


@given(cases())
def test_backend_all_leaves_nothing_approximate(case: Case) -> None:
    size, cached, found, tail = case
    plan = make_plan(size, cached, found, make_backend("all", 0, {}), tail)
    assert plan.approximate_from is None
    assert (plan.reused, len(plan.restore)) == (0, 0)
    assert computed(plan) == list(range(cached, size - 1))


def test_neighbours_whose_rows_follow_on_are_one_span_and_jumps_cut() -> None:
    found = [Reused(4, 10, 20), Reused(10, 15, 26), Reused(15, 20, 90), Reused(30, 40, 5)]
    plan = make_plan(50, 0, found, make_backend("master", 0, {}), 64)
    assert plan.restore.tolist() == [[20, 4, 11], [90, 15, 5]]
    assert plan.compute.tolist() == [[0, 4], [20, 49]]


@pytest.mark.parametrize("size", [1, 2, 17])
def test_a_prompt_without_reused_segments_is_all_fresh_but_its_last_token(size: int) -> None:
    plan = make_plan(size, 0, [], make_backend("master", 32, {}), 64)
    assert (plan.promised, plan.fresh, plan.approximate_from) == (size - 1, size - 1, None)
    assert plan.restore.shape == (0, 3)


def test_a_hit_that_covers_everything_leaves_nothing_to_do() -> None:
    plan = make_plan(33, 32, [Reused(0, 20, 5)], make_backend("master", 4, {}), 8)
    assert (plan.promised, plan.compute.shape, plan.restore.shape) == (0, (0, 2), (0, 3))


@given(st.lists(st.booleans(), max_size=40))
def test_runs_are_the_maximal_stretches_of_a_mask(flags: list[bool]) -> None:
    expected, at = [], 0
    for value, group in itertools.groupby(flags):
        length = len(list(group))
        if value:
            expected.append([at, at + length])
        at += length
    assert runs_of(np.array(flags, dtype=bool)).tolist() == expected
