"""Which master a closed group restores from, or why none: real families in vLLM's own page pool."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, covered, out, own_tokens, reasons, round_of
from tiny_rounds import NEUTRAL, private
from tokendance_sdk.protocol import FallbackReason


def test_a_first_round_builds_one_master_that_all_members_restore_from() -> None:
    engine = Engine()
    members = engine.plan(round_of([out(0), out(1)]))
    master = engine.current()
    assert master is not None
    assert [m.master for m in members] == [master] * 3
    assert master.users == 3
    assert [covered(m) for m in members] == [120] * 3
    preamble = master.transcript.preamble.tolist()
    assert own_tokens(master) == [*preamble, *out(0), *out(1)]
    assert set(preamble) == set(NEUTRAL.tolist())


def test_members_with_other_orders_share_one_copy() -> None:
    engine = Engine()
    a, b, c = out(0), out(1), out(2)
    orders = [(a, b, c), (c, a, b), (b, c, a)]
    members = engine.plan([[private(m, 0, 30), *order, MARKER] for m, order in enumerate(orders)])
    assert [covered(m) for m in members] == [180] * 3
    assert members[0].master is not None
    assert sum(members[0].master.transcript.counts().values()) == 3


def test_a_next_round_that_keeps_the_old_ones_extends_the_master_by_the_new_part_alone() -> None:
    engine = Engine()
    engine.done(engine.plan(round_of([out(0), out(1)])))
    master = engine.current()
    assert master is not None
    before, pages = master.transcript.tokens().tolist(), master.pages().tolist()
    members = engine.plan(round_of([out(0), out(1), out(2)]))
    assert engine.current() is master
    assert master.transcript.tokens()[: len(before)].tolist() == before
    assert own_tokens(master)[-60:] == list(out(2))
    assert len(own_tokens(master)) == len(before) + 60
    assert master.pages().tolist()[: len(pages)] == pages
    assert [covered(m) for m in members] == [180] * 3


def test_a_window_that_dropped_the_oldest_block_starts_a_new_master() -> None:
    engine = Engine()
    engine.done(engine.plan(round_of([out(0), out(1)])))
    old, free = engine.current(), engine.free
    engine.plan(round_of([out(1), out(2)]))
    new = engine.current()
    assert old is not None
    assert new is not None
    assert old.retired
    assert own_tokens(new) == [*new.transcript.preamble.tolist(), *out(1), *out(2)]
    assert engine.free == free


def test_nothing_new_uses_the_master_as_it_is() -> None:
    engine = Engine()
    engine.done(engine.plan(round_of([out(0), out(1)])))
    master = engine.current()
    assert master is not None
    master.next_job(10_000)
    engine.plan(round_of([out(1), out(0)]))
    assert engine.current() is master
    assert master.pending == 0


def test_a_member_alone_never_builds_a_master_but_uses_one_that_is_there() -> None:
    engine = Engine()
    prompt = round_of([out(0), out(1)], members=1)
    assert reasons(engine.plan(prompt)) == {FallbackReason.ALONE}
    assert engine.current() is None
    engine.done(engine.plan(round_of([out(0), out(1)])))
    master = engine.current()
    assert master is not None
    rows = master.transcript.rows
    [late] = engine.plan(round_of([out(0), out(1), out(2)], members=1))
    assert (late.reason, late.master, covered(late)) == (None, master, 120)
    assert master.transcript.rows == rows, "one member's new block is nobody else's business"
    engine.done([late])
    engine.plan(round_of([out(0), out(1), out(0)], members=1))
    assert master.transcript.rows == rows, (
        "it shows known text twice, but the master is not computed for it alone"
    )


def test_members_that_share_nothing_are_told_so() -> None:
    engine = Engine()
    members = engine.plan([[private(m, 0, 90), MARKER] for m in range(3)])
    assert reasons(members) == {FallbackReason.NO_SHARED_SEGMENTS}
    assert engine.current() is None


def test_one_member_without_shared_text_does_not_spoil_the_round() -> None:
    engine = Engine()
    members = engine.plan([*round_of([out(0)]), [private(8, 0, 50), MARKER]])
    assert [m.reason for m in members] == [None, None, None, FallbackReason.NO_SHARED_SEGMENTS]
    master = engine.current()
    assert master is not None
    assert master.users == 3


def test_shared_text_that_costs_more_than_it_saves_is_left_alone() -> None:
    engine = Engine()
    members = engine.plan(round_of([out(0, size=20)], members=2))
    assert reasons(members) == {FallbackReason.NO_GAIN}
    assert engine.current() is None


def test_text_that_vllm_has_cached_for_every_member_gains_nothing() -> None:
    engine = Engine()
    assert reasons(engine.plan(round_of([out(0), out(1)]), cached=144)) == {FallbackReason.NO_GAIN}


def test_the_reference_backend_is_served_even_at_a_loss() -> None:
    engine = Engine()
    members = engine.plan(round_of([out(0, size=20)], members=2), backend="all")
    assert reasons(members) == {None}


def test_a_transcript_longer_than_the_models_positions_is_refused() -> None:
    engine = Engine(max_rows=120)
    assert reasons(engine.plan(round_of([out(0), out(1)]))) == {FallbackReason.MASTER_TOO_LONG}
    assert reasons(engine.plan(round_of([out(0)]))) == {None}


def test_a_pool_without_room_is_a_reason_and_nothing_is_held() -> None:
    engine = Engine(pages=11)
    free = engine.free
    assert reasons(engine.plan(round_of([out(0), out(1)]))) == {FallbackReason.NOT_ENOUGH_PAGES}
    assert engine.free == free


def test_two_rounds_of_one_session_interleave_with_each_its_own_right_rows() -> None:
    """The second is planned before anybody restored from the first: once as an extension, once as a new master."""
    engine = Engine()
    first = engine.plan(round_of([out(0), out(1)]))
    second = engine.plan(round_of([out(0), out(1), out(2)]))
    engine.check(first)
    assert {m.master for m in first} == {m.master for m in second}
    third = engine.plan(round_of([out(3), out(4)]))
    old, new = second[0].master, third[0].master
    assert old is not None
    assert new is not None
    assert old is not new
    assert (old.retired, old.users, new.users) == (True, 6, 3)
    engine.check([*first, *second, *third])
    assert not {*old.pages().tolist()} & {*new.pages().tolist()}
    engine.done([*first, *second])
    assert old.blocks == []
    engine.check(third)
    engine.done(third)
    assert engine.families.clear()
    assert engine.free == 200


def test_sessions_do_not_see_each_others_masters() -> None:
    engine = Engine()
    engine.plan(round_of([out(0), out(1)]))
    alone = engine.plan(round_of([out(0), out(1)], members=1), session="other")
    assert reasons(alone) == {FallbackReason.ALONE}


def test_a_region_starts_where_a_member_has_something_of_its_own_in_between() -> None:
    a, b, c = out(0), out(1), out(2)
    own = [private(m, 50, 9) for m in range(3)]
    for between, starts in (([], [0]), ([0], [0, 60]), ([1], [0, 120]), ([0, 1], [0, 60, 120])):
        engine = Engine()
        prompts = []
        for m in range(3):
            prompt = [private(m, 0, 30), a, *([own[m]] if 0 in between else [])]
            prompts.append([*prompt, b, *([private(m, 60, 9)] if 1 in between else []), c, MARKER])
        engine.plan(prompts)
        transcript = engine.master().transcript
        rows = {tuple(e.tokens.tolist()): e.row for e in transcript.entries}
        assert transcript.regions == [rows[(a, b, c)[start // 60]] for start in starts]


def test_regions_of_a_master_that_is_shared_start_where_most_members_need_no_fillers() -> None:
    engine = Engine()
    histories, between = (30, 46, 21), (9, 9, 3)
    prompts = [
        [private(m, 0, histories[m]), out(0), private(m, 50, between[m]), out(1), MARKER] for m in range(3)
    ]
    engine.plan(prompts)
    transcript = engine.master().transcript
    assert transcript.regions[0] == len(transcript.preamble)
    assert transcript.regions[0] % PAGE == 30 % PAGE
    assert transcript.regions[1] % PAGE == (30 + 60 + 9) % PAGE
    assert transcript.placed == 2


def test_a_master_nobody_shares_is_as_short_as_can_be() -> None:
    engine = Engine(placement="copy")
    engine.plan(round_of([out(0), out(1)]))
    transcript = engine.master().transcript
    assert transcript.preamble.tolist() == NEUTRAL.tolist()
    assert (transcript.regions, transcript.rows) == ([], len(NEUTRAL) + 120)


def test_a_masters_region_stands_where_its_members_meet_and_its_preamble_at_the_start() -> None:
    engine = Engine()
    engine.plan([[private(m, 0, n), out(0), out(1), MARKER] for m, n in enumerate((20, 300, 150))])
    transcript = engine.master().transcript
    first = transcript.regions[0]
    at = transcript.frame.at(np.arange(transcript.rows)).tolist()
    assert at == [*range(first), *range(310, 310 + transcript.rows - first)]


def test_members_copy_where_the_model_has_no_positions_to_skip() -> None:
    prompts = [[private(m, 0, 1000 + m), out(0), out(1), MARKER] for m in range(3)]
    engines = Engine(max_rows=1121), Engine(max_rows=1122)
    assert [reasons(engine.plan(prompts)) for engine in engines] == [{None}, {None}]
    assert [len(engine.master().transcript.regions) for engine in engines] == [0, 1]


def test_fillers_in_a_master_count_as_its_cost() -> None:
    """Two members would save 60 tokens each and one master row more is computed for every filler."""
    engine = Engine(tail_tokens=0)
    members = engine.plan(round_of([out(0, 64)], members=2), first=0)
    assert reasons(members) == {None}
    saved = sum(engine.placement.estimate(m, engine.master().transcript).reused for m in members)
    assert saved > engine.master().transcript.rows


@pytest.mark.parametrize(
    ("size", "options", "selected"),
    [(3, {}, 2 * 32), (10, {}, 2 * 15), (50, {}, 2 * 8), (50, {"first": 32}, 2 * 32)],
)
def test_the_larger_a_round_the_less_each_member_recomputes_unless_it_asked_for_it(
    size: int, options: dict[str, int], selected: int
) -> None:
    engine = Engine(tail_tokens=0)
    members = [
        engine.member(prompt, f"agent-{i}", first=32, placement="copy", options=options)
        for i, prompt in enumerate(round_of([out(0), out(1)]))
    ]
    for member in members:
        member.group_size = size
    engine.planner.plan(members)
    for member in members:
        assert member.master is not None
        assert engine.placement.plan(member, member.master.transcript).selected == selected
