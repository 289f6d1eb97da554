"""The scheduler half with a store: what is captured, what comes back, and that no page is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, out
from scheduled_rounds import Loop
from tiny_rounds import Prompt, private
from tokendance_engine.adapters.vllm.mirror_jobs import FILLER
from vllm.v1.request import Request

HISTORIES = (30, 75, 140)


def stored(monkeypatch: pytest.MonkeyPatch, pages: int = 201, **settings: Any) -> Loop:
    return Loop(monkeypatch, pages=pages, cpu_bytes=1 << 30, **settings)


def first_round(histories: tuple[int, ...] = HISTORIES) -> list[Prompt]:
    return [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(histories)]


def grown(made: list[Prompt], turn: int) -> list[Prompt]:
    return [[*p[:-1], private(m, 100 * turn, 20 + 9 * m), out(turn, 90), MARKER] for m, p in enumerate(made)]


def play(loop: Loop, made: list[Prompt], fidelity: Any = "fast", **tag: Any) -> list[dict[str, Any]]:
    requests = [
        loop.add(p, f"a{i}", fidelity=fidelity, round_size=len(made), **tag) for i, p in enumerate(made)
    ]
    loop.run(200)
    return [loop.reports[r.request_id] for r in requests]


def lose(loop: Loop) -> None:
    """Other requests have taken every page; masters are gone, what sessions know of their agents is not."""
    loop.side._families.give_way(1 << 30)
    assert loop.manager.reset_prefix_cache()
    loop.tape.rows[:] = -1


@pytest.mark.parametrize("placement", ["copy", "shared"])
@pytest.mark.parametrize("restarted", [False, True])
def test_lost_histories_come_back_into_pages_and_later_rounds_find_them(
    monkeypatch: pytest.MonkeyPatch, placement: Any, restarted: bool
) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made, placement=placement)
    for turn in (2, 3):
        made = grown(made, turn)
        lose(loop)
        if restarted:  # the session's chains are gone too: everything must follow from what is stored
            loop.side._families.clear()
        for report in play(loop, made, placement=placement):
            assert report["restored_tokens"] == report["cached_tokens"] >= 192
            assert (report["fallback_reason"] is None) == (not restarted), "the master came back, too"
    assert loop.side.reset()
    assert loop.manager.block_pool.get_num_free_blocks() == 200


def test_a_master_comes_back_only_where_the_round_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    play(loop, first_round())
    lose(loop)
    others: list[Prompt] = [
        [private(m, 0, n), out(5, 90), out(6, 90), MARKER] for m, n in enumerate(HISTORIES)
    ]
    requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(others)]
    revived = []
    while loop.waiting:
        meta = loop.step()
        revived += meta.mirrors.revived if meta.mirrors is not None else []
    loop.run()
    assert not revived
    assert {loop.reports[r.request_id]["fallback_reason"] for r in requests} == {None}


def test_histories_of_members_that_wait_for_their_round_are_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made)
    lose(loop)
    requests = []
    for i, prompt in enumerate(grown(made, 2)):
        requests.append(loop.add(prompt, f"a{i}", fidelity="fast", round_size=3))
        for _ in range(3):  # nothing runs
            loop.step()
    loop.run()
    assert all(loop.reports[r.request_id]["restored_tokens"] >= 192 for r in requests)


def test_what_is_still_cached_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made)
    assert {r["restored_tokens"] for r in play(loop, grown(made, 2))} == {0}


@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_exact_members_get_back_only_what_is_exact(monkeypatch: pytest.MonkeyPatch, fidelity: Any) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made, fidelity, placement="copy")
    lose(loop)
    reports = play(loop, made, "exact")
    for report, history in zip(reports, HISTORIES, strict=True):
        first = history + (8 if fidelity == "balanced" else 0)
        assert report["restored_tokens"] == first // PAGE * PAGE
        assert report["approximate_cached_tokens"] == 0


def test_rows_of_a_round_that_was_exact_come_back_to_exact_members_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made, "exact")
    lose(loop)
    assert [r["restored_tokens"] for r in play(loop, made, "exact")] == [208, 256, 320]


def test_plain_and_unnamed_requests_are_neither_captured_nor_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = stored(monkeypatch)
    loop.add(first_round()[0], "plain", tagged=False)
    loop.run()
    for prompt in first_round():
        loop.add(prompt, "nobody", fidelity="fast", named=False, round_size=3)
    loop.run()
    assert not loop.store


def test_with_no_memory_for_it_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    play(loop, first_round())
    assert not loop.store


def test_a_capture_holds_all_but_the_last_token_and_says_where_fillers_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(made)]
    members = [loop.member(r) for r in requests]
    loop.run()
    for request, member, (held, _) in zip(requests, members, loop.store.values(), strict=True):
        tokens = np.array(request.all_token_ids)
        assert len(held.tokens) == len(tokens) - 1
        filler = held.tokens == FILLER
        assert filler.sum() == member.lies.filling.count
        assert (held.tokens[~filler] == tokens[:-1][~filler]).all()
        assert held.approximate_from is not None
        assert held.approximate_from % PAGE == 0


@pytest.mark.parametrize("steps", range(1, 9))
def test_members_that_leave_at_any_moment_leave_no_page_behind(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made)
    lose(loop)
    requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(grown(made, 2))]
    for _ in range(steps):
        loop.step()
    for request in requests[:2]:
        if request in loop.running or request in loop.waiting:
            loop.abort(request)
    loop.run()
    assert loop.side.reset()
    loop.run()
    assert loop.manager.block_pool.get_num_free_blocks() == 200


def test_a_worker_that_fails_to_restore_costs_nobody_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made)
    lose(loop)
    loop.broken = True
    reports = play(loop, grown(made, 2))
    assert {r["restored_tokens"] for r in reports} == {0}
    assert {r["fallback_reason"] for r in reports} == {"worker_error"}
    loop.broken = False
    assert {r["fallback_reason"] for r in play(loop, grown(made, 2))} <= {None, "no_gain", "prefix_cached"}


def test_a_worker_that_never_answers_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    made = first_round()
    play(loop, made)
    lose(loop)
    loop.side.mirrors.patience = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(loop.side.mirrors, "hear", lambda report: None)
        requests = [loop.add(p, f"a{i}", fidelity="fast", round_size=3) for i, p in enumerate(made)]
        loop.step()
    loop.run(200)
    assert {loop.reports[r.request_id]["restored_tokens"] for r in requests} == {0}


@pytest.mark.parametrize("pages", [40, 44, 60])
def test_in_a_pool_too_small_for_all_histories_everybody_is_served(
    monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    loop = stored(monkeypatch, pages=pages)
    made = first_round()
    play(loop, made)
    for turn in (2, 3):
        made = grown(made, turn)
        play(loop, made)
    assert loop.side.reset()
    loop.run()
    assert loop.manager.block_pool.get_num_free_blocks() == pages - 1


def test_a_preempted_member_says_nothing_of_what_the_store_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch, pages=36)
    made = first_round((30, 75))
    seen: list[tuple[Request, int]] = []
    capture = loop.side.mirrors.captures.capture

    def spy(request: Request, *rest: Any) -> bool:
        done = capture(request, *rest)
        seen.append((request, loop.side.mirrors.captures.jobs[-1].same))
        return done

    monkeypatch.setattr(loop.side.mirrors.captures, "capture", spy)
    for i, p in enumerate(made):
        loop.add(p, f"a{i}", answer=150, fidelity="fast", round_size=2, placement="copy")
    loop.run(600)
    assert loop.preempted > 0, "the pool is large enough for both: this test sees nothing"
    assert all(same == 0 for request, same in seen if request.num_preemptions)


def test_a_reset_forgets_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    play(loop, first_round())
    loop.side.reset()
    meta = loop.step()
    assert meta.mirrors is not None
    assert meta.mirrors.reset
