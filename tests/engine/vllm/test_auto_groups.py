"""Untagged requests that share segments: grouped by content, held no longer than the window, never across tenants."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, out
from scheduled_rounds import Loop
from tiny_rounds import Prompt, private
from vllm.v1.request import Request

WINDOW_MS = 40.0


class Clock:
    """Stands for `time.monotonic`; every step of the engine takes a millisecond."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop(monkeypatch, gather_ms=WINDOW_MS, balanced_tokens=0)
    clock = Clock(monkeypatch)
    step = made.step

    def ticking() -> Any:
        clock.now += 0.001
        return step()

    monkeypatch.setattr(made, "step", ticking)
    return made


def prompt(member: int, *blocks: int) -> Prompt:
    return [(901, 902), private(member, 0, 30 + 40 * member), *(out(b, 90) for b in blocks), MARKER]


def send(loop: Loop, member: int, *blocks: int, fidelity: Any = "fast", **fields: Any) -> Request:
    return loop.add(
        prompt(member, *blocks), f"r{member}", fidelity=fidelity, automatic=True, named=False, **fields
    )


def reports(loop: Loop, requests: list[Request]) -> list[dict[str, Any]]:
    return [loop.reports[r.request_id] for r in requests]


def busy(loop: Loop) -> Request:
    """A plain request that runs all the while."""
    made = loop.add([private(8, 0, 40)], "plain", answer=150, tagged=False)
    loop.step()
    return made


def test_two_interleaved_groups_are_told_apart_and_each_reuses_its_own(loop: Loop) -> None:
    busy(loop)
    one, two = [], []
    for member in range(3):
        one.append(send(loop, member, 0, 1))
        two.append(send(loop, member + 3, 2, 3))
    loop.run(400)
    names = []
    for requests in (one, two):
        told = reports(loop, requests)
        assert {(r["group_size"], r["automatic"], r["role"]) for r in told} == {(3, True, "member")}
        assert all(r["reused_tokens"] > 0 for r in told), told
        (name,) = {r["round_id"] for r in told}
        names.append(name)
    assert names[0] != names[1]


def test_alone_in_the_engine_nobody_waits(loop: Loop) -> None:
    request = send(loop, 0, 0, 1)
    loop.step()
    assert request in loop.running
    loop.run(100)
    (report,) = reports(loop, [request])
    assert (report["gather_ms"], report["fallback_reason"]) == (pytest.approx(1.0, abs=0.01), "alone")


def test_children_of_one_request_are_nobody_else(loop: Loop) -> None:
    children = [send(loop, 0, 0, 1) for _ in range(2)]
    for child in children:
        member = loop.member(child)
        member.tag = type(member.tag)(**{**_fields(member.tag), "parent": "both"})
    loop.step()
    assert all(child in loop.running for child in children)
    loop.run(100)


def _fields(tag: Any) -> dict[str, Any]:
    return {name: getattr(tag, name) for name in tag.__slots__}


def test_beside_others_a_request_waits_for_the_window_and_no_longer(loop: Loop) -> None:
    plain = busy(loop)
    request = send(loop, 0, 0, 1)
    waited = 0
    while request in loop.waiting:
        loop.step()
        waited += 1
    assert plain in loop.running, (
        "the plain request ended: nothing shows that it is the window that was waited for"
    )
    assert waited == pytest.approx(WINDOW_MS, abs=2)
    loop.run(400)
    assert reports(loop, [request])[0]["fallback_reason"] == "alone"


def test_a_stream_of_requests_holds_nobody_longer_than_the_window(loop: Loop) -> None:
    busy(loop)
    requests = []
    for member in range(6):
        requests.append(send(loop, member, 0, 1))
        for _ in range(25):
            loop.step()
    loop.run(600)
    assert all(r["gather_ms"] <= WINDOW_MS + 2 for r in reports(loop, requests))


def test_the_next_round_of_the_same_text_finds_its_master(loop: Loop) -> None:
    busy(loop)
    first = [send(loop, member, 0, 1) for member in range(3)]
    loop.run(400)
    late = send(loop, 5, 0, 1)
    loop.run(400)
    (report,) = reports(loop, [late])
    assert report["round_id"] == reports(loop, first)[0]["round_id"]
    assert report["reused_tokens"] > 0


def test_tenants_are_never_grouped(loop: Loop) -> None:
    busy(loop)
    requests = [send(loop, member, 0, 1, salt=f"tenant {member}") for member in range(3)]
    loop.run(400)
    told = reports(loop, requests)
    assert {(r["group_size"], r["fallback_reason"]) for r in told} == {(1, "alone")}
    assert len({r["round_id"] for r in told}) == 3


def test_who_asks_for_nothing_approximate_is_neither_held_nor_reuses(loop: Loop) -> None:
    busy(loop)
    requests = [send(loop, member, 0, 1, fidelity="exact") for member in range(3)]
    loop.step()
    assert loop.waiting == []
    loop.run(400)
    assert {r["fallback_reason"] for r in reports(loop, requests)} == {"exact_requested"}


def test_who_has_nothing_to_share_is_not_held(loop: Loop) -> None:
    busy(loop)
    request = loop.add(
        [private(0, 0, 90), private(0, 100, 20), MARKER], "r", fidelity="fast", automatic=True, named=False
    )
    loop.step()
    assert request in loop.running
    loop.run(400)
    assert reports(loop, [request])[0]["fallback_reason"] == "no_shared_segments"


def test_a_session_that_a_client_names_is_another_one(loop: Loop) -> None:
    busy(loop)
    found = [send(loop, member, 0, 1) for member in range(2)]
    loop.run(400)
    tagged = loop.add(prompt(4, 0, 1), "a", fidelity="fast", round_size=1)
    loop.run(400)
    assert loop.reports[tagged.request_id]["fallback_reason"] == "alone"
    assert reports(loop, found)[0]["round_id"].startswith("~auto:")
