"""Nobody's private text gets into a master, whatever a session's rounds look like."""

from __future__ import annotations

import pytest
from hypothesis import given

pytest.importorskip("vllm")

from planned_rounds import MARKER, Engine, covered, out, reasons, round_of
from tiny_rounds import Prompt, owner, private, rounds
from tokendance_sdk.protocol import FallbackReason


def test_children_of_one_request_do_not_make_its_private_text_shared() -> None:
    engine = Engine()
    prompts = round_of([out(0), out(1)], members=2, history=80)
    members = [engine.member(prompts[0], "a"), engine.member(prompts[0], "a"), engine.member(prompts[1], "b")]
    engine.planner.plan(members)
    engine.check(members)
    master = engine.current()
    assert master is not None
    assert all(owner(token) is None for token in master.transcript.tokens().tolist())
    assert [covered(m) for m in members] == [120] * 3


def test_children_of_one_request_alone_are_alone() -> None:
    engine = Engine()
    [prompt] = round_of([out(0), out(1)], members=1, history=80)
    members = [engine.member(prompt, "a") for _ in range(4)]
    engine.planner.plan(members)
    assert reasons(members) == {FallbackReason.ALONE}
    assert engine.current() is None


def test_a_member_that_shows_the_known_text_twice_gives_the_master_nothing_of_its_own() -> None:
    """The transcript cannot be extended, so a new one starts, and only one member takes part in it."""
    engine = Engine()
    engine.done(engine.plan(round_of([out(0), out(1)])))
    mine = private(0, 0, 80)
    engine.plan([[mine, out(0), out(0), out(0), MARKER], [private(1, 0, 50), MARKER]], backend="all")
    master = engine.current()
    assert master is not None
    assert not set(mine) & set(master.transcript.tokens().tolist())


@given(rounds(), rounds())
def test_no_master_ever_holds_one_members_private_text(one: list[Prompt], two: list[Prompt]) -> None:
    """Over two rounds of one session, even where serving them is a loss."""
    engine = Engine()
    for prompts in (one, two):
        members = engine.plan(prompts, backend="all")
        master = engine.current()
        if master is not None:
            assert all(owner(token) is None for token in master.transcript.tokens().tolist())
        engine.done(members)
