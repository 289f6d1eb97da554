"""Who belongs together, and when a round goes; time is passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.rounds.gather import Gather, Group

QUIET, CAP = 0.1, 2.0


@pytest.fixture
def gather() -> Gather:
    return Gather(QUIET, CAP)


def test_a_round_of_known_size_goes_when_its_last_member_arrives(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 3, 0.0)
    assert gather.add("r", "b", "b", 3, 1.0) is group
    assert not gather.is_closed("r", group, 1.9)
    assert gather.add("r", "c", "c", 3, 1.9) is group
    assert gather.is_closed("r", group, 1.9)


def test_a_round_of_known_size_waits_at_most_the_cap(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 3, 5.0)
    assert gather.deadline(group) == pytest.approx(5.0 + CAP)
    assert not gather.is_closed("r", group, 6.99)
    assert gather.is_closed("r", group, 7.0)


def test_without_a_size_every_new_member_restarts_the_quiet_window(gather: Gather) -> None:
    group = gather.add("r", "a", "a", None, 0.0)
    gather.add("r", "b", "b", None, 0.08)
    assert not gather.is_closed("r", group, 0.15)
    assert gather.is_closed("r", group, 0.18)


def test_a_steady_trickle_cannot_hold_a_round_longer_than_the_cap(gather: Gather) -> None:
    group = gather.add("r", "0", "0", None, 0.0)
    for i in range(1, 39):
        assert gather.add("r", str(i), str(i), None, i * 0.05) is group
    assert not gather.is_closed("r", group, 1.95)
    gather.add("r", "late", "late", None, 1.96)
    assert gather.is_closed("r", group, CAP)


def test_children_of_one_request_count_as_one_member(gather: Gather) -> None:
    group = gather.add("r", "a_0", "a", 2, 0.0)
    gather.add("r", "a_1", "a", 2, 0.0)
    gather.add("r", "a_2", "a", 2, 0.0)
    assert group.arrived() == 1
    assert not gather.is_closed("r", group, 0.0)
    gather.add("r", "b_0", "b", 2, 0.1)
    assert gather.is_closed("r", group, 0.1)


def test_registering_a_member_again_changes_nothing(gather: Gather) -> None:
    group = gather.add("r", "a", "a", None, 0.0)
    assert gather.add("r", "a", "a", None, 0.09) is group
    assert (group.last, dict(group.members)) == (0.0, {"a": "a"})


def test_the_smallest_announced_size_counts(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 4, 0.0)
    gather.add("r", "b", "b", None, 0.0)
    gather.add("r", "c", "c", 3, 0.0)
    assert group.size == 3
    assert gather.is_closed("r", group, 0.0)


def test_a_late_member_forms_a_new_group(gather: Gather) -> None:
    first = gather.add("r", "a", "a", 1, 0.0)
    assert gather.is_closed("r", first, 0.0)
    second = gather.add("r", "b", "b", 1, 0.5)
    assert second is not first
    assert list(second.members) == ["b"]


def test_a_member_that_comes_after_the_deadline_is_late_even_if_nobody_asked_meanwhile(
    gather: Gather,
) -> None:
    first = gather.add("r", "a", "a", None, 0.0)
    second = gather.add("r", "b", "b", None, 0.5)
    assert second is not first
    assert first.closed


def test_closing_is_final(gather: Gather) -> None:
    group = gather.add("r", "a", "a", None, 0.0)
    assert gather.is_closed("r", group, 0.1)
    assert gather.is_closed("r", group, 0.0)


def test_rounds_do_not_mix(gather: Gather) -> None:
    one = gather.add(("tenant-1", "r"), "a", "a", 2, 0.0)
    two = gather.add(("tenant-2", "r"), "b", "b", 2, 0.0)
    assert one is not two
    assert not gather.is_closed(("tenant-1", "r"), one, 0.0)


def test_an_aborted_member_is_not_waited_for(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 3, 0.0)
    gather.add("r", "b", "b", 3, 0.0)
    gather.remove("r", group, "b")
    assert group.size == 2
    gather.add("r", "c", "c", 3, 0.0)
    assert gather.is_closed("r", group, 0.0)


def test_aborting_all_children_of_a_request_takes_one_member_away(gather: Gather) -> None:
    group = gather.add("r", "a_0", "a", 3, 0.0)
    gather.add("r", "a_1", "a", 3, 0.0)
    gather.add("r", "b", "b", 3, 0.0)
    gather.remove("r", group, "a_0")
    assert group.size == 3, "the request still has a child in the group"
    gather.remove("r", group, "a_1")
    assert group.size == 2
    assert not gather.is_closed("r", group, 0.0), "the third member is still to come"


def test_removing_a_stranger_or_twice_is_a_no_op(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 3, 0.0)
    gather.remove("r", group, "nobody")
    assert group.size == 3
    gather.remove("r", group, "a")
    gather.remove("r", group, "a")
    assert group.size == 2


def test_a_group_that_lost_every_member_is_forgotten(gather: Gather) -> None:
    group = gather.add("r", "a", "a", 2, 0.0)
    gather.remove("r", group, "a")
    assert gather.add("r", "b", "b", 5, 0.1) is not group


arrivals = st.lists(
    st.tuples(st.integers(0, 6), st.none() | st.integers(1, 8), st.floats(0, 0.3)), min_size=1
)


@given(arrivals)
def test_no_member_waits_longer_than_the_cap_and_none_is_in_two_open_groups(
    events: list[tuple[int, int | None, float]],
) -> None:
    gather, now, groups = Gather(QUIET, CAP), 0.0, list[Group]()
    for parent, size, delay in events:
        now += delay
        group = gather.add("r", f"{parent}", f"{parent}", size, now)
        groups += [group] if group not in groups else []
        assert gather.deadline(group) <= group.first + CAP
    assert sum(not g.closed for g in groups) <= 1
    assert all(gather.is_closed("r", g, now + CAP) for g in groups)


def test_later_children_of_a_request_join_its_round_even_when_that_is_complete(gather: Gather) -> None:
    group = gather.add("r", "a0", "a", 2, 0.0)
    gather.add("r", "b0", "b", 2, 0.1)
    assert gather.add("r", "b1", "b", 2, 0.1) is group
    assert gather.add("r", "a1", "a", 2, 0.1) is group
    assert gather.is_closed("r", group, 0.1)
    assert gather.add("r", "b2", "b", 2, 0.1) is not group, "a group that went takes nobody in"


def test_a_fixed_group_goes_with_its_window_whoever_arrives(gather: Gather) -> None:
    group = gather.add("r", "a", "a", None, 0.0, fixed=True)
    for i in range(1, 9):
        assert gather.add("r", f"b{i}", f"b{i}", None, i / 100, fixed=True) is group
    assert gather.deadline(group) == pytest.approx(QUIET)
    assert not gather.is_closed("r", group, QUIET - 0.001)
    late = gather.add("r", "late", "late", None, QUIET, fixed=True)
    assert late is not group
    assert group.closed


def test_a_group_that_is_let_go_takes_nobody_in(gather: Gather) -> None:
    group = gather.add("r", "a", "a", None, 0.0)
    gather.close("r", group)
    assert gather.is_closed("r", group, 0.0)
    assert gather.add("r", "b", "b", None, 0.0) is not group
