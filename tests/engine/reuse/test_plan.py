"""A plan says for every token it covers, exactly once, where its KV comes from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import PAGE, Case, backends, cases, computed, copied, plan_of, shared_tokens, taken
from tokendance_engine.reuse.backends import Backend, make_backend
from tokendance_engine.reuse.plan import Context, make_plan, runs_of
from tokendance_engine.reuse.selection import Reused
from tokendance_engine.segments.filling import Filling


@given(cases(), backends)
def test_shared_copied_and_computed_tokens_are_disjoint_and_tile_what_is_planned(
    case: Case, backend: Backend
) -> None:
    context = case.context
    plan = plan_of(case, backend)
    assert plan.cached == context.cached
    assert plan.end % PAGE == 0
    assert plan.cached <= plan.end < context.size, "the last token is vLLM's"
    assert sorted([*taken(plan), *computed(plan)]) == list(range(plan.cached, plan.end))
    assert plan.end - plan.cached == plan.reused + plan.selected + plan.fresh
    assert (plan.reused, plan.computed) == (len(taken(plan)), len(computed(plan)))
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(plan.compute.tolist())]
    assert all(gap > 0 for gap in gaps), "runs that touch are one run"
    assert all(n > 0 for n in plan.restore[:, 2])


@given(cases(), backends)
def test_every_reused_token_gets_the_row_that_holds_it(case: Case, backend: Backend) -> None:
    row_of = {p: s.row + p - s.start for s in case.found for p in range(s.start, s.end)}
    for index, row in taken(plan_of(case, backend)).items():
        assert row == row_of[index]


@given(cases(), backends)
def test_the_tail_of_the_shared_text_and_all_after_it_is_never_reused(case: Case, backend: Backend) -> None:
    plan, found = plan_of(case, backend), case.found
    start = max(found[-1].start, found[-1].end - case.tail) if found else 0
    assert all(index < start for index in taken(plan))
    assert [p for p in computed(plan) if p >= start] == list(range(max(start, plan.cached), plan.end))
    known = {p for s in found for p in range(s.start, s.end) if p < start}
    assert plan.fresh == len([p for p in range(plan.cached, plan.end) if p not in known])


@given(cases())
def test_a_plan_covers_the_page_that_holds_the_last_reusable_token_if_it_holds_half_of_it(case: Case) -> None:
    plan, found = plan_of(case, make_backend("master", 0, {})), case.found
    last = max((s.end for s in found[:-1]), default=0)
    if found and found[-1].end - found[-1].start > case.tail:
        last = found[-1].end - case.tail
    wanted = last - last % PAGE + (PAGE if last % PAGE >= PAGE // 2 else 0)
    assert plan.end == max(plan.cached, min(wanted, (case.context.size - 1) // PAGE * PAGE))


@pytest.mark.parametrize(("size", "last", "end"), [(90, 40, 48), (90, 39, 32), (90, 48, 48), (48, 48, 32)])
def test_where_a_plan_ends(size: int, last: int, end: int) -> None:
    plan = make_plan(Context(size, 0, PAGE), [Reused(3, last, 0)], make_backend("master", 0, {}), 0)
    assert plan.end == end


@given(cases(), backends)
def test_approximate_is_all_from_the_first_reused_token_or_the_first_newly_skipped_position(
    case: Case, backend: Backend
) -> None:
    plan = plan_of(case, backend)
    new_steps = [at for at, _ in case.context.frame.steps if at >= plan.cached]
    assert plan.approximate_from == min([*taken(plan), *new_steps], default=None)


def test_positions_skipped_in_an_earlier_round_do_not_make_cached_pages_approximate_again() -> None:
    frame = Context(0, 0, PAGE).frame.stepped(16, 32)
    found = [Reused(16, 48, 48), Reused(70, 100, 200)]
    plan = make_plan(Context(120, 48, PAGE, frame), found, make_backend("master", 0, {}), 0)
    assert plan.approximate_from == 70


@given(cases())
def test_backend_all_reuses_nothing(case: Case) -> None:
    plan = plan_of(case, make_backend("all", 0, {}))
    assert (plan.reused, len(plan.restore), len(plan.shared)) == (0, 0, 0)
    assert computed(plan) == list(range(plan.cached, plan.end))


def test_neighbours_whose_rows_follow_on_are_one_span_and_jumps_cut() -> None:
    found = [Reused(4, 10, 21), Reused(10, 15, 27), Reused(15, 20, 90), Reused(30, 48, 5)]
    plan = make_plan(Context(60, 0, PAGE), found, make_backend("master", 0, {}), 0)
    assert plan.restore.tolist() == [[21, 4, 11], [90, 15, 5], [5, 30, 18]]
    assert plan.compute.tolist() == [[0, 4], [20, 30]]


@given(cases(), backends)
def test_a_span_moves_all_its_rows_by_one_difference_of_positions(case: Case, backend: Backend) -> None:
    """Its first row alone says by how much its keys are rotated."""
    frame, master = case.context.frame, case.context.master
    for row, index, n in plan_of(case, backend).restore.tolist():
        inside = np.arange(n)
        assert np.unique(frame.at(index + inside) - master.at(row + inside)).size == 1


def test_a_span_is_cut_where_the_masters_positions_jump_and_the_members_do_not() -> None:
    """A region that fills its last page, and a member that has nothing between it and the next one."""
    master = Context(0, 0, PAGE).frame.stepped(64, 160)
    context = Context(100, 0, PAGE, master=master, share=False)
    plan = make_plan(context, [Reused(5, 37, 32), Reused(37, 90, 64)], make_backend("master", 0, {}), 0)
    assert plan.restore.tolist() == [[32, 5, 32], [64, 37, 53]]


@pytest.mark.parametrize("size", [1, 2, 17, 40])
def test_a_prompt_without_reused_segments_is_left_to_vllm(size: int) -> None:
    plan = make_plan(Context(size, 0, PAGE), [], make_backend("master", 32, {}), 64)
    assert (plan.end, plan.computed, plan.reused, plan.approximate_from) == (0, 0, 0, None)
    assert (plan.restore.shape, plan.shared.shape, plan.compute.shape) == ((0, 3), (0, 2), (0, 2))


def test_a_hit_that_covers_everything_leaves_nothing_to_do() -> None:
    plan = make_plan(Context(33, 32, PAGE), [Reused(0, 20, 5)], make_backend("master", 4, {}), 8)
    assert (plan.cached, plan.end) == (32, 32)
    assert (plan.compute.shape, plan.restore.shape, plan.shared.shape) == ((0, 2), (0, 3), (0, 2))
    assert plan.private_pages(PAGE).shape == (0,)


@given(cases(), backends)
def test_shared_pages_are_whole_reused_and_stand_where_the_masters_stand(
    case: Case, backend: Backend
) -> None:
    plan, context = plan_of(case, backend), case.context
    row_of = {p: s.row + p - s.start for s in case.found for p in range(s.start, s.end)}
    mine = {*computed(plan), *copied(plan)}
    for page, master_page in plan.shared.tolist():
        tokens = np.arange(page * PAGE, (page + 1) * PAGE)
        rows = np.arange(master_page * PAGE, (master_page + 1) * PAGE)
        assert [row_of.get(t) for t in tokens.tolist()] == rows.tolist()
        assert not mine & set(tokens.tolist()), "somebody would write into the master's page"
        assert context.frame.at(tokens).tolist() == context.master.at(rows).tolist()


@given(cases(), backends)
def test_every_page_that_can_be_shared_is(case: Case, backend: Backend) -> None:
    plan, context = plan_of(case, backend), case.context
    copies = copied(plan)
    for page in plan.private_pages(PAGE).tolist():
        tokens = np.arange(page * PAGE, (page + 1) * PAGE)
        rows = np.array([copies.get(t, -1) for t in tokens.tolist()])
        if (rows < 0).any() or rows[0] % PAGE or not context.share:
            continue
        in_order = rows.tolist() == list(range(rows[0], rows[0] + PAGE))
        assert not in_order or context.frame.at(tokens).tolist() != context.master.at(rows).tolist()


@given(cases(), backends)
def test_pages_of_its_own_and_shared_ones_tile_the_plan(case: Case, backend: Backend) -> None:
    plan = plan_of(case, backend)
    own, shared = plan.private_pages(PAGE).tolist(), plan.shared[:, 0].tolist()
    assert sorted([*own, *shared]) == list(range(plan.cached // PAGE, plan.end // PAGE))
    assert own == sorted(own)


@given(cases(), backends)
def test_whether_pages_are_shared_changes_nothing_but_who_holds_them(case: Case, backend: Backend) -> None:
    shared, apart = (plan_of(case, backend, share) for share in (True, False))
    assert len(apart.shared) == 0
    assert taken(shared) == taken(apart)
    assert shared.compute.tolist() == apart.compute.tolist()
    assert len(shared_tokens(shared)) + len(copied(shared)) == len(copied(apart))


def test_a_page_with_one_recomputed_token_is_the_members_own() -> None:
    """Rows 32 to 95 at the master's very positions; the first two tokens of each of two blocks are recomputed."""
    found = [Reused(32, 64, 32), Reused(64, 96, 64)]
    plan = make_plan(Context(120, 0, PAGE), found, make_backend("master", 2, {}), 0)
    assert plan.shared.tolist() == [[3, 3], [5, 5]]
    assert plan.restore.tolist() == [[34, 34, 14], [66, 66, 14]]
    assert plan.compute.tolist() == [[0, 34], [64, 66]]


@pytest.mark.parametrize(("row", "shift"), [(33, 1), (48, 0), (48, 17), (32, 16)])
def test_another_page_phase_or_another_position_is_copied(row: int, shift: int) -> None:
    frame = Context(0, 0, PAGE).frame.stepped(20, shift)
    plan = make_plan(Context(120, 0, PAGE, frame), [Reused(32, 96, row)], make_backend("master", 0, {}), 0)
    assert len(plan.shared) == 0
    assert plan.restore.tolist() == [[row, 32, 64]]


@given(st.lists(st.booleans(), max_size=40))
def test_runs_are_the_maximal_stretches_of_a_mask(flags: list[bool]) -> None:
    expected, at = [], 0
    for value, group in itertools.groupby(flags):
        length = len(list(group))
        if value:
            expected.append([at, at + length])
        at += length
    assert runs_of(np.array(flags, dtype=bool)).tolist() == expected


@pytest.mark.parametrize(("insert", "start"), [((20, 5), 64), ((30, 5), 32), ((40, 5), 40), ((70, 5), 64)])
def test_pages_are_approximate_from_the_first_filler_that_is_not_cached(
    insert: tuple[int, int], start: int
) -> None:
    """Fillers are not computed as what they are, so nobody may find them under the keys of their tokens."""
    context = Context(120, 32, PAGE, filling=Filling((insert,)))
    plan = make_plan(context, [Reused(64, 100, 0)], make_backend("master", 0, {}), 0)
    assert plan.approximate_from == start
