"""Sessions of several rounds: whatever they look like, in every page a member is given stands what it should hold.

Pages hold (token, position) instead of keys and values; planner, page pool, keys and jobs are the real ones.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, out, positions
from tiny_rounds import FILLER, Block, Prompt, owner, private
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.segments.filling import strip


def play(engine: Engine, prompts: list[Prompt], first: int = 0) -> list[Member]:
    """Plan, fill and check one round; its members are not finished yet."""
    members = [engine.member(p, f"a{i}", first=first) for i, p in enumerate(prompts)]
    engine.planner.plan(members)
    engine.check(members)
    served = [m for m in members if m.reason is None]
    engine.prepare(served)
    engine.check_pages(served)
    for member in served:
        assert strip(member.prompt, member.lies.filling).tolist() == member.user_prompt.tolist()
    return members


def grown(prompts: list[Prompt], blocks: list[Block], own: int) -> list[Prompt]:
    """Each member's next prompt: its last one, something of its own, and new shared blocks."""
    return [[*p[:-1], private(m, 500 + 50 * len(p), own + m), *blocks, MARKER] for m, p in enumerate(prompts)]


def two_rounds(engine: Engine) -> tuple[list[Member], list[Member]]:
    prompts: list[Prompt] = [[private(m, 0, n), out(0, 100), MARKER] for m, n in enumerate((30, 75, 140))]
    one = play(engine, prompts)
    engine.finish(one, (5, 6, 7))
    return one, play(engine, grown(prompts, [out(2, 90)], own=20))


def test_a_second_round_finds_its_first_one_in_the_cache_and_shares_the_new_region() -> None:
    engine = Engine()
    one, two = two_rounds(engine)
    for before, after in zip(one, two, strict=True):
        assert before.plan is not None
        assert after.plan is not None
        assert after.cached == before.plan.end
        kept = positions(before)[: before.plan.end]
        assert positions(after)[: before.plan.end] == kept, "cached pages keep their positions"
        rest = 100 // PAGE - (100 - 16) // PAGE  # of the first block, which was the tail then
        assert len(after.plan.shared) == rest + (90 - 16) // PAGE
    shared = [
        {t[i] for i, _ in m.plan.shared} for t, m in zip(engine.tables(two), two, strict=True) if m.plan
    ]
    assert shared[0] == shared[1] == shared[2]


def test_a_region_that_begins_in_cached_pages_is_shared_from_there_on() -> None:
    """The last round's task and answers that several gave are texts of the next region that members have computed."""
    engine = Engine(tail_tokens=0)
    prompts: list[Prompt] = [[private(m, 0, n)] for m, n in enumerate((30, 41, 140, 90))]
    answers = [(5, 6, 7), (5, 6, 7), (8, 9, 10, 11, 12), (8, 9, 10, 11, 12)]
    for number in range(4):
        blocks, task = [out(3 * number, 90), out(3 * number + 1, 70)], out(3 * number + 2, 37)
        prompts = [[*p, *blocks, task] for p in prompts]
        members = play(engine, prompts)
        for member in members:
            assert member.plan is not None
            assert len(member.plan.shared) >= 160 // PAGE - 1
        for member, answer in zip(members, answers, strict=True):
            engine.finish([member], answer)
        prompts = [[*p, answer] for p, answer in zip(prompts, answers, strict=True)]


def test_a_second_regions_rows_come_after_fillers_and_stand_where_the_members_stand() -> None:
    engine = Engine()
    _, two = two_rounds(engine)
    transcript = engine.master().transcript
    first, second = transcript.regions
    assert second - first - 100 < PAGE
    assert transcript.tokens()[first + 100 : second].tolist() == [FILLER] * (second - first - 100)
    position = int(transcript.frame.at(np.array([second]))[0])
    for member in two:
        [start] = [s.start for s in member.found or [] if s.row == second]
        assert positions(member)[start] == position


def test_offsets_only_grow_from_round_to_round() -> None:
    engine = Engine()
    one, two = two_rounds(engine)
    for before, after in zip(one, two, strict=True):
        steps = before.lies.frame.steps
        assert after.lies.frame.steps[: len(steps)] == steps
        assert after.lies.frame.shift >= before.lies.frame.shift


def test_a_newcomer_in_the_second_round_meets_both_regions_at_the_same_pages() -> None:
    engine = Engine()
    prompts: list[Prompt] = [[private(m, 0, n), out(0, 100), MARKER] for m, n in enumerate((30, 140))]
    engine.finish(play(engine, prompts))
    prompts = grown(prompts, [out(2, 90)], own=20)
    late: Prompt = [private(7, 0, 50), out(0, 100), private(7, 90, 25), out(2, 90), MARKER]
    members = play(engine, [*prompts, late])
    plan = members[2].plan
    assert plan is not None
    assert members[2].placement_reason is None
    assert len(plan.shared) == 100 // PAGE + (90 - 16) // PAGE
    assert set(engine.tables(members[2:])[0]) & set(engine.tables(members[:1])[0])


def test_a_session_that_copied_first_may_share_later() -> None:
    """Rows computed before anybody shared keep the positions they were computed at."""
    engine = Engine()
    prompts: list[Prompt] = [[private(m, 0, n), out(0, 100), MARKER] for m, n in enumerate((30, 75, 140))]
    copies = [engine.member(p, f"a{i}", first=0, placement="copy") for i, p in enumerate(prompts)]
    engine.planner.plan(copies)
    engine.prepare(copies)
    engine.check_pages(copies)
    engine.finish(copies)
    members = play(engine, grown(prompts, [out(2, 90)], own=200))
    newcomer: Prompt = [private(7, 0, 50), out(0, 100), private(7, 90, 25), out(2, 90), MARKER]
    assert all(m.plan is not None and len(m.plan.shared) for m in members)
    engine.finish(members)
    play(engine, [*grown(prompts, [out(2, 90)], own=200), newcomer])


def test_copies_of_two_regions_without_fillers_between_them_turn_by_their_own_positions() -> None:
    """The first region fills its last page, so the rows of both follow each other, but not their positions."""
    engine = Engine()
    blocks = [out(0, 96), out(2, 96)]
    prompts: list[Prompt] = [
        [private(m, 0, 32), blocks[0], private(m, 50, 64), blocks[1], MARKER] for m in range(3)
    ]
    members = [engine.member(p, f"a{i}", first=0) for i, p in enumerate(prompts)]
    joined: Prompt = [private(7, 0, 37), *blocks, MARKER]
    members.append(engine.member(joined, "copies", first=0, placement="copy"))
    engine.planner.plan(members)
    engine.prepare(members)
    engine.check_pages(members)


SIZES = (40, 64, 75, 96)


@st.composite
def sessions(draw: st.DrawFn) -> list[list[Prompt]]:
    """Rounds of a session: prompts grow, members come late, orders may differ."""
    shuffled, count = draw(st.booleans()), draw(st.integers(2, 3))
    prompts: list[Prompt] = [[private(m, 0, draw(st.integers(0, 60)))] for m in range(count)]
    session = []
    for turn in range(draw(st.integers(1, 3))):
        chosen = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
        shared = [tuple(60 * (4 * turn + b) + i for i in range(SIZES[b])) for b in chosen]
        for m, prompt in enumerate(prompts):
            order = draw(st.permutations(shared)) if shuffled else shared
            for i, block in enumerate(order):
                own = draw(st.sampled_from([0, 0, 7, 40]))
                prompt += [private(m, 100 + 300 * turn + 50 * i, own), block]
        session.append([[*p, private(m, 90, 3), MARKER] for m, p in enumerate(prompts)])
        if turn == 0 and draw(st.booleans()):
            prompts.append([private(len(prompts), 0, draw(st.integers(0, 60)))])
    return session


@given(sessions(), st.sampled_from([0, 0, 8, 40]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_page_of_every_round_holds_what_it_should_and_nothing_private_is_shared(
    session: list[list[Prompt]], first: int, forget: bool
) -> None:
    engine = Engine(pages=401)
    for prompts in session:
        members = play(engine, prompts, first)
        master = engine.current()
        if master is not None:
            assert all(owner(token) is None for token in master.transcript.tokens().tolist())
        engine.finish(members, (5, 6))
        if forget:  # the cache lost most pages: what was laid out before is found in part, or not at all
            engine.pool.let_go(engine.pool.take(engine.free - 12))
    assert engine.families.clear()
    assert engine.free == 400
