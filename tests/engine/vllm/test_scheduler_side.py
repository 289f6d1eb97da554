"""The scheduler half, step by step: who waits, what is filled, what vLLM finds, and what is reported in the end."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, out
from scheduled_rounds import Loop
from tiny_rounds import Prompt, cut, private

HISTORIES = (30, 75, 140)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def prompts(histories: tuple[int, ...] = HISTORIES) -> list[Prompt]:
    return [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(histories)]


def play(loop: Loop, made: list[Prompt], fidelity: Any = "fast", **tag: Any) -> list[dict[str, Any]]:
    requests = [
        loop.add(p, f"a{i}", fidelity=fidelity, round_size=len(made), **tag) for i, p in enumerate(made)
    ]
    loop.run()
    return [loop.reports[r.request_id] for r in requests]


def check_report(report: dict[str, Any], prompt: Prompt) -> None:
    tokens, segments = cut(prompt)
    assert report["prompt_tokens"] == len(tokens)
    parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
    assert sum(report[part] for part in parts) == len(tokens) + report["filler_tokens"]
    edges = {(s.start, s.end) for s in segments}
    assert {tuple(m) for m in report["matched"]} <= edges, "matched segments are not the user's"


def test_a_round_is_served_from_one_master_whose_pages_all_share(loop: Loop) -> None:
    made = prompts()
    reports = play(loop, made)
    for report, prompt in zip(reports, made, strict=True):
        check_report(report, prompt)
        assert (report["fallback_reason"], report["placement"], report["placement_reason"]) == (
            None,
            "shared",
            None,
        )
        assert report["shared_tokens"] == 160
    assert [r["filler_tokens"] for r in reports] == [0, 3, 2]
    assert [r["skipped_positions"] for r in reports] == [112, 64, 0]


def test_three_rounds_of_growing_prompts(loop: Loop) -> None:
    made = prompts()
    play(loop, made)
    for turn in (2, 3):
        made = [
            [*p[:-1], private(m, 100 * turn, 20 + 9 * m), out(turn, 90), MARKER] for m, p in enumerate(made)
        ]
        for report, prompt in zip(play(loop, made), made, strict=True):
            check_report(report, prompt)
            assert report["fallback_reason"] is None
            assert report["cached_tokens"] > 200
            assert report["shared_tokens"] >= 64


def test_a_last_block_shorter_than_the_tail_is_reported_where_the_user_put_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is found, but nothing of it is reused, so its fillers and skipped positions are taken back."""
    loop = Loop(monkeypatch, tail_tokens=64)
    made: list[Prompt] = [
        [private(m, 0, n), out(0, 90), private(m, 200, 20 + 7 * m), out(1, 60), MARKER]
        for m, n in enumerate(HISTORIES)
    ]
    for report, prompt in zip(play(loop, made), made, strict=True):
        check_report(report, prompt)
        assert report["reused_tokens"] > 0


def test_a_failing_worker_costs_nobody_their_answer(loop: Loop) -> None:
    loop.broken = True
    reports = play(loop, prompts())
    assert {r["fallback_reason"] for r in reports} == {"worker_error"}
    assert {r["filler_tokens"] + r["skipped_positions"] for r in reports} == {0}
    loop.broken = False
    assert all(r["fallback_reason"] in (None, "prefix_cached", "no_gain") for r in play(loop, prompts()))


def test_plain_requests_beside_a_round_stay_plain(loop: Loop) -> None:
    other: Prompt = [private(8, 0, 50), *prompts()[0][1:]]
    first = loop.add(other, "plain", tagged=False)
    reports = play(loop, prompts())
    second = loop.add(prompts()[1], "plain", tagged=False)
    loop.run()
    assert {r["fallback_reason"] for r in reports} == {None}
    assert not {first.request_id, second.request_id} & set(loop.reports)
    assert first.num_prompt_tokens == len(cut(other)[0])


def test_a_plain_request_may_compute_a_members_prompt_between_its_plan_and_its_preparation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without fillers the member's tokens are the plain prompt's, but not their positions."""
    loop = Loop(monkeypatch, max_round_tokens=64)  # the master takes several steps
    made = prompts()
    members = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(made)]
    loop.add(made[0], "plain", tagged=False)
    loop.step()
    assert loop.member(members[0]).lies.frame.steps
    assert not loop.member(members[0]).lies.filling.inserts
    assert loop.member(members[0]).preparation is None
    again = loop.add(made[0], "again", tagged=False)
    loop.run()
    assert again.num_output_tokens == 4
    report = loop.reports[members[0].request_id]
    assert (report["fallback_reason"], report["skipped_positions"]) == ("prefix_cached", 0)


@pytest.mark.parametrize("placement", ["shared", "copy"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_member_that_leaves_at_any_moment_leaves_nothing_behind(
    loop: Loop, steps: int, placement: Any
) -> None:
    made = prompts()
    requests = [
        loop.add(p, f"a{i}", fidelity="fast", round_size=3, placement=placement) for i, p in enumerate(made)
    ]
    for _ in range(steps):
        loop.step()
    loop.abort(requests[1])
    loop.run()
    assert loop.reports[requests[0].request_id]["fallback_reason"] is None
    assert loop.side.reset()
    assert loop.manager.block_pool.get_num_free_blocks() == 200


def test_in_a_pool_too_small_for_all_at_once_everybody_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, pages=40)
    made = prompts()
    for report, prompt in zip(play(loop, made), made, strict=True):
        check_report(report, prompt)
    assert loop.side.reset()
    assert loop.manager.block_pool.get_num_free_blocks() == 39


@pytest.mark.parametrize("placement", ["copy", "shared", "auto"])
@pytest.mark.parametrize("fidelity", ["exact", "balanced", "fast"])
def test_every_fidelity_and_placement_fills_pages_with_the_members_own_tokens(
    loop: Loop, fidelity: str, placement: Any
) -> None:
    made = prompts()
    reports = play(loop, made, fidelity, placement=placement)
    for report, prompt in zip(reports, made, strict=True):
        check_report(report, prompt)
    assert {r["fallback_reason"] for r in reports} == {"exact_requested" if fidelity == "exact" else None}


def test_a_preempted_member_finds_its_pages_again_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, pages=36)
    made = prompts((30, 75))
    requests = [
        loop.add(p, f"a{i}", answer=150, fidelity="fast", round_size=2, placement="copy")
        for i, p in enumerate(made)
    ]
    loop.run(600)
    assert loop.preempted > 0, "the pool is large enough for both: this test sees nothing"
    for request, prompt in zip(requests, made, strict=True):
        check_report(loop.reports[request.request_id], prompt)
        assert request.num_output_tokens == 150


def test_nobody_is_seated_before_the_worker_answered(loop: Loop) -> None:
    requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(prompts())]
    seen = 0
    while loop.waiting:
        meta = loop.step()
        handed = {job.request_id for job in meta.members}
        seen += len(handed)
        assert not handed & {r.request_id for r in loop.running}
    assert seen == len(requests)
    assert all(loop.member(r).ready for r in requests if r in loop.running)


def test_a_worker_that_never_answers_is_waited_for_only_so_long(loop: Loop) -> None:
    requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(prompts())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.side, "hear", lambda report: None)
        loop.step()
    loop.run(200)
    assert {loop.reports[r.request_id]["fallback_reason"] for r in requests} == {"worker_error"}


def test_a_member_that_goes_the_plain_way_keeps_no_page_that_its_rounds_master_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """VLLM found its history before the round was planned, and the master's pages came from just there."""
    loop = Loop(monkeypatch, pages=41)
    mine = private(9, 0, 240)
    for text in (mine, private(8, 0, 240)):
        loop.add([text, MARKER], "before", answer=1, tagged=False)
        loop.run()
    asked = [[mine, MARKER], *prompts((30, 75))]
    reports = play(loop, asked, placement="copy")
    assert [r["fallback_reason"] for r in reports[:2]] == ["no_shared_segments", None]
    assert reports[0]["cached_tokens"] < 240, "the master took none of its pages: the test shows nothing"
