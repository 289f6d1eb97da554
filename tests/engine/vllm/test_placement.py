"""Who shares the master's pages, who copies them and why: real families in vLLM's own page pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, out, positions
from tiny_rounds import FILLER, Prompt, private
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.rekey import Disposition
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from tokendance_sdk.protocol import PlacementReason

HISTORIES = (30, 75, 140)
BLOCKS = [out(0, 90), out(1, 90)]


def prompts(histories: tuple[int, ...] = HISTORIES) -> list[Prompt]:
    return [[private(m, 0, n), *BLOCKS, MARKER] for m, n in enumerate(histories)]


def shared_ids(engine: Engine, member: Member) -> list[int]:
    """Ids of the pages in a prepared member's table that its plan takes from the master."""
    assert member.plan is not None
    [table] = engine.tables([member])
    return [table[i] for i, _ in member.plan.shared.tolist()]


def test_members_with_other_histories_point_to_the_very_same_pages() -> None:
    engine = Engine()
    members = engine.plan(prompts(), first=0)
    engine.prepare(members)
    engine.check_pages(members)
    ids = [shared_ids(engine, m) for m in members]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == (180 - 16) // PAGE, "all but the tail"
    assert set(ids[0]) <= set(engine.master().pages().tolist())
    assert [m.placement_reason for m in members] == [None] * 3


def test_members_get_as_few_fillers_as_can_be_and_skips_up_to_the_longest_history() -> None:
    engine = Engine()
    members = engine.plan(prompts(), first=0)
    assert [m.lies.filling.inserts for m in members] == [(), ((75, 3),), ((140, 2),)]
    assert [m.lies.frame.steps for m in members] == [((30, 112),), ((78, 64),), ()]
    for member, history in zip(members, HISTORIES, strict=True):
        start = history + member.lies.filling.count
        assert member.prompt[history:start].tolist() == [FILLER] * member.lies.filling.count
        assert member.prompt[start:].tolist() == [*BLOCKS[0], *BLOCKS[1], *MARKER]
        assert positions(member)[start] == 142
        assert positions(member)[:history] == list(range(history))


def test_recomputed_tokens_make_their_page_private_and_only_theirs() -> None:
    engine = Engine()
    members = engine.plan([[private(m, 0, n), out(0, 200), MARKER] for m, n in enumerate((30, 75))], first=20)
    engine.prepare(members)
    engine.check_pages(members)
    ids = [shared_ids(engine, m) for m in members]
    assert ids[0] == ids[1] == engine.master().pages().tolist()[-11:-2]
    tables = engine.tables(members)
    assert set(tables[0]) & set(tables[1]) == set(ids[0])


def test_a_member_that_asks_for_copies_gets_them_beside_members_that_share() -> None:
    engine = Engine()
    made = [engine.member(p, f"a{i}", first=0) for i, p in enumerate(prompts())]
    made[1].tag = replace(made[1].tag, placement="copy")
    engine.planner.plan(made)
    assert made[1].lies == Disposition()
    engine.prepare(made)
    engine.check_pages(made)
    assert [len(shared_ids(engine, m)) > 0 for m in made] == [True, False, True]
    assert [m.placement_reason for m in made] == [None, PlacementReason.COPY_REQUESTED, None]
    assert not set(engine.tables(made)[1]) & set(engine.master().pages().tolist())


def test_if_nobody_shares_the_master_has_no_regions_and_no_fillers() -> None:
    engine = Engine(placement="copy")
    members = engine.plan(prompts(), first=0)
    transcript = engine.master().transcript
    assert (transcript.regions, transcript.frame.steps) == ([], ())
    assert FILLER not in transcript.tokens().tolist()
    assert [m.lies for m in members] == [Disposition()] * 3
    assert {m.placement_reason for m in members} == {PlacementReason.COPY_REQUESTED}
    engine.prepare(members)
    engine.check_pages(members)


@pytest.mark.parametrize("server", ["auto", "shared", "copy"])
@pytest.mark.parametrize("asked", [None, "auto", "shared", "copy"])
def test_what_a_member_asks_for_wins_over_the_servers_setting(server: str, asked: str | None) -> None:
    engine = Engine(placement=server)
    member = engine.member(prompts()[0], "a", placement=asked)
    copies = (asked or server) == "copy"
    assert engine.placement.refusal(member) == (PlacementReason.COPY_REQUESTED if copies else None)
    assert engine.placement.shares([member]) is not copies


def test_the_reference_backend_shares_nothing() -> None:
    engine = Engine()
    members = engine.plan(prompts(), backend="all")
    engine.prepare(members)
    engine.check_pages(members)
    assert {m.placement_reason for m in members} == {PlacementReason.REFERENCE_BACKEND}
    assert {len(shared_ids(engine, m)) for m in members} == {0}


def test_a_runner_whose_positions_cannot_be_shifted_gets_copies() -> None:
    engine = Engine()
    engine.placement.unsupported = PlacementReason.UNSUPPORTED_RUNNER
    members = engine.plan(prompts(), first=0)
    assert {m.placement_reason for m in members} == {PlacementReason.UNSUPPORTED_RUNNER}
    assert [m.lies for m in members] == [Disposition()] * 3


def test_a_history_far_longer_than_the_others_is_left_alone() -> None:
    engine = Engine(max_skipped_positions=100)
    members = engine.plan(prompts((30, 40, 400)), first=0)
    assert [m.placement_reason for m in members] == [None, None, PlacementReason.LONGER_HISTORY]
    assert members[2].lies == Disposition()
    engine.prepare(members)
    engine.check_pages(members)


def test_a_history_far_shorter_than_the_others_is_left_alone_unless_it_asks_to_share() -> None:
    engine = Engine(max_skipped_positions=100)
    made = [engine.member(p, f"a{i}", first=0) for i, p in enumerate(prompts((30, 400, 410, 420, 31)))]
    made[4].tag = replace(made[4].tag, placement="shared")
    engine.planner.plan(made)
    short = PlacementReason.SHORTER_HISTORY
    assert [m.placement_reason for m in made] == [short, None, None, None, None]
    engine.prepare(made)
    engine.check_pages(made)
    assert [len(shared_ids(engine, m)) > 0 for m in made] == [False, True, True, True, True]


def test_an_estimate_is_the_plan_a_member_gets_and_changes_nothing() -> None:
    engine = Engine()
    members = engine.plan(prompts())
    transcript = engine.master().transcript
    late = engine.member(prompts()[0], "late")
    before = (late.lies, late.prompt.tolist(), [bytes(k) for k in late.request.block_hashes])
    estimate = engine.placement.estimate(late, transcript)
    assert (late.lies, late.prompt.tolist(), [bytes(k) for k in late.request.block_hashes]) == before
    assert late.found is None
    engine.placement.lay_out(late, transcript)
    plan = engine.placement.plan(late, transcript)
    for one, two in ((estimate, plan), (plan, engine.placement.plan(members[0], transcript))):
        assert (one.end, one.reused, one.selected, one.fresh) == (
            two.end,
            two.reused,
            two.selected,
            two.fresh,
        )
        assert one.shared.tolist() == two.shared.tolist()
        assert one.restore.tolist() == two.restore.tolist()


LIES = Disposition(Filling(((30, 2),)), Frame(((32, 112),)))


@pytest.mark.parametrize(
    ("max_tokens", "max_positions", "fits"),
    [(4096, 4096, True), (230, 342, True), (229, 342, False), (230, 341, False)],
)
def test_fillers_count_as_tokens_and_skipped_positions_as_positions(
    max_tokens: int, max_positions: int, fits: bool
) -> None:
    engine = Engine()
    placement = replace(engine.placement, max_tokens=max_tokens, max_positions=max_positions)
    member = engine.member(prompts()[0], "a", answer=16)
    assert len(member.user_prompt) == 212
    assert placement.fits(member, LIES) is fits


@pytest.mark.parametrize(("answer", "fits"), [(228, True), (227, False)])
def test_an_answer_without_a_limit_gives_up_at_most_half_of_its_room(answer: int, fits: bool) -> None:
    engine = Engine()
    placement = replace(engine.placement, max_tokens=0, max_positions=0)
    member = engine.member(prompts()[0], "a", answer=answer, open_ended=True)
    assert placement.fits(member, LIES) is fits


def test_an_answer_without_a_limit_ends_earlier_by_what_was_put_in_and_skipped() -> None:
    engine = Engine()
    members = engine.plan(prompts(), first=0, answer=1000, open_ended=True)
    assert [m.request.max_tokens for m in members] == [1000 - 112, 1000 - 3 - 64, 1000 - 2]
    members[0].lie(Disposition())
    assert members[0].request.max_tokens == 1000


def test_an_answer_with_a_limit_keeps_it() -> None:
    members = Engine().plan(prompts(), first=0, answer=20)
    assert [m.request.max_tokens for m in members] == [20] * 3


def test_a_member_for_whom_the_model_has_no_positions_left_copies() -> None:
    engine = Engine()
    engine.placement.max_positions = 212 + 16 + 112 - 1
    members = engine.plan(prompts(), first=0)
    assert members[0].placement_reason == PlacementReason.NOT_ENOUGH_POSITIONS
    assert members[0].lies == Disposition()
    engine.prepare(members[:1])
    engine.check_pages(members[:1])
