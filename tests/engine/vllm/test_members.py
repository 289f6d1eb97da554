"""One member: how its request is laid out and keyed, and what it reports."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, make_request, out
from tiny_rounds import FILLER, Prompt, private
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.rekey import Disposition, Point
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from tokendance_sdk.protocol import FallbackReason, MemberReport

PROMPT: Prompt = [private(0, 0, 30), out(0, 90), MARKER]
LIES = Disposition(Filling(((30, 2),)), Frame(((32, 48),)))


def member() -> Member:
    return Engine().member(PROMPT, "a")


def keys(made: Member) -> list[bytes]:
    return [bytes(key) for key in made.request.block_hashes]


def test_a_member_lies_as_the_user_sent_it_until_told_otherwise() -> None:
    made = member()
    assert made.prompt.tolist() == made.user_prompt.tolist()
    assert made.segments == made.user_segments
    assert not made.relaid
    made.lie(Disposition())
    assert not made.relaid, "the same again is no change"


def test_prompt_segments_and_request_move_together() -> None:
    made = member()
    made.lie(LIES)
    assert made.relaid
    assert made.prompt.tolist() == list(made.request.all_token_ids) == made.request.prompt_token_ids
    assert [(s.start, s.end) for s in made.segments] == [(0, 30), (32, 122), (122, 124)]
    assert made.prompt[30:32].tolist() == [FILLER, FILLER]
    assert [(s.start, s.end) for s in made.user_segments] == [(0, 30), (30, 120), (120, 122)]


def test_a_salt_of_its_own_is_put_and_taken_without_touching_those_of_earlier_rounds() -> None:
    made = member()
    made.lie(Disposition(points=(Point(1, b"earlier"),)))
    earlier = keys(made)
    made.key_apart(3)
    first = keys(made)
    assert first[:3] == earlier[:3]
    assert not set(first[3:]) & set(earlier)
    made.key_apart(4)
    assert keys(made)[:4] == earlier[:4], "the point at page 3 is gone"
    assert len(made.lies.points) == 2
    made.relaid = False
    made.key_apart(None)
    assert (keys(made), made.lies.points, made.own_point) == (earlier, (Point(1, b"earlier"),), None)
    assert made.relaid, "vLLM may have looked it up under the salted keys"
    made.relaid = False
    made.key_apart(None)
    assert not made.relaid


def test_two_members_of_the_same_text_never_meet_in_approximate_pages() -> None:
    one, two = member(), member()
    for each in (one, two):
        each.key_apart(2)
    assert keys(one)[:2] == keys(two)[:2]
    assert not set(keys(one)[2:]) & set(keys(two)[2:])


def test_its_chain_holds_prompt_and_answer_as_the_next_prompt_will_show_them() -> None:
    made = member()
    made.lie(LIES)
    made.request.append_output_token_ids([5, 6, 7])
    chain = made.chain()
    assert chain.tokens.tolist() == [*made.user_prompt.tolist(), 5, 6, 7]
    assert chain.disposition == LIES
    follower = make_request("b", [*made.user_prompt.tolist(), 5, 6, 7, 8])
    assert chain.usable(np.array(follower.prompt_token_ids, dtype=np.int32), PAGE).filling == LIES.filling


def reported(first: int = 0, **tag: str) -> list[tuple[Member, MemberReport]]:
    engine = Engine()
    prompts: list[Prompt] = [
        [private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate((30, 75, 140))
    ]
    members = engine.plan(prompts, first=first, **tag)
    engine.prepare(members)
    return [(m, m.report(PAGE)) for m in members]


@pytest.mark.parametrize("first", [0, 8, 40])
def test_every_token_and_filler_is_counted_once(first: int) -> None:
    for made, report in reported(first):
        counted = report.cached_tokens + report.reused_tokens + report.recomputed_tokens + report.fresh_tokens
        assert counted == report.prompt_tokens + report.filler_tokens == len(made.prompt)
        assert report.prompt_tokens == len(made.user_prompt)
        assert 0 <= report.shared_tokens <= report.reused_tokens


def test_matched_segments_are_the_users_offsets() -> None:
    assert [made.lies.filling.count for made, _ in reported()] == [0, 3, 2]
    for made, report in reported():
        start = made.user_segments[1].start
        assert report.matched == [(start, start + 90), (start + 90, start + 180)]


def test_placement_says_whether_pages_are_the_masters_own() -> None:
    assert {r.placement for _, r in reported()} == {"shared"}
    copies = [r for _, r in reported(placement="copy")]
    assert {(r.placement, r.placement_reason, r.shared_tokens) for r in copies} == {
        ("copy", "copy_requested", 0)
    }
    assert all(r.reused_tokens > 0 for r in copies)


def test_a_member_that_took_vllms_own_path_reports_no_reuse_and_no_placement() -> None:
    for made, _ in reported():
        made.reason = FallbackReason.WORKER_ERROR
        report = made.report(PAGE)
        assert (report.reused_tokens, report.recomputed_tokens, report.shared_tokens) == (0, 0, 0)
        assert (report.placement, report.placement_reason, report.matched) == (None, None, [])
        assert report.fresh_tokens == len(made.prompt)


def test_cached_pages_of_earlier_rounds_count_as_approximate_from_their_first_salt_on() -> None:
    made = member()
    made.cached = 96
    made.lie(Disposition(points=(Point(2, b"a"), Point(4, b"b"))))
    assert made.report(PAGE).approximate_cached_tokens == 64
    made.key_apart(6)
    assert made.report(PAGE).approximate_cached_tokens == 64
    made.lie(Disposition())
    made.key_apart(6)
    assert made.report(PAGE).approximate_cached_tokens == 0
