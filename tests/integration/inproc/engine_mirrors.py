"""Histories that vLLM's prefix cache loses between rounds come back from the store."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server
SETTINGS = {"tokendance": {"cpu_bytes": 1 << 28}, "max_model_len": 1024, "num_gpu_blocks_override": 200}
PAGE = 32


@pytest.fixture
def seen(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Bytes in pages as they were captured, and as they stand after a restore, by agent."""
    worker = rounds.worker.mirrors
    kept: dict[str, list[Any]] = {"captured": [], "restored": []}
    capture, restore = worker.put_mirror, worker.get_mirror

    def put_mirror(job: Any) -> None:
        kept["captured"].append((job, rounds.rows(job.pages, len(job.tokens))))
        capture(job)

    def get_mirror(job: Any) -> None:
        restore(job)
        kept["restored"].append((job, rounds.rows(job.pages, job.end)))

    monkeypatch.setattr(worker, "put_mirror", put_mirror)
    monkeypatch.setattr(worker, "get_mirror", get_mirror)
    return kept


def check_bytes(seen: dict[str, list[Any]]) -> int:
    """Restored rows are the captured ones, bit for bit; how many were compared."""
    compared = 0
    for job, now in seen["restored"]:
        _, then = next(c for c in reversed(seen["captured"]) if c[0].owner == job.owner)
        for (k1, v1), (k2, v2) in zip(then, now, strict=True):
            for a, b in ((k1, k2), (v1, v2)):
                assert torch.equal(a[job.start : job.end], b[job.start : job.end])
        compared += job.end - job.start
    return compared


def next_round(rounds: Rounds, prompts: list[Prompt], answers: list[list[int]], new: int = 2) -> list[Prompt]:
    """Every agent's context, its answer, and `new` blocks that all of them get."""
    blocks, end = [rounds.random(115) for _ in range(new)], rounds.random(15)
    made = []
    for prompt, answer in zip(prompts, answers, strict=True):
        more = join(prompt.agent, prompt.tokens + answer, blocks, end)
        made.append(Prompt(prompt.agent, more.tokens, prompt.boundaries + more.boundaries))
    return made


@pytest.mark.parametrize("placement", ["copy", "shared"])
@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_lost_histories_come_back_bit_for_bit_and_answers_are_those_of_a_cache_that_kept_them(
    rounds: Rounds, seen: dict[str, list[Any]], fidelity: str, placement: str
) -> None:
    first = rounds.members(histories=(100, 131, 160))
    how = {"fidelity": fidelity, "placement": placement}
    answers = rounds.play(first, "s:1", **how).tokens
    second = next_round(rounds, first, answers)
    kept = rounds.play(second, "s:2", **how)
    third = next_round(rounds, second, kept.tokens)
    kept_third = rounds.play(third, "s:3", **how)
    assert not seen["restored"]

    rounds.forget()
    seen["captured"].clear()
    assert rounds.play(first, "s:1", **how).tokens == answers
    rounds.lose()
    got = rounds.play(second, "s:2", **how)
    assert check_bytes(seen) > 600
    for before, now in zip(kept.reports, got.reports, strict=True):
        assert now["restored_tokens"] > 200
        assert now["restored_tokens"] == now["cached_tokens"] == before["cached_tokens"]
        assert now["fallback_reason"] == before["fallback_reason"]
        assert now["reused_tokens"] == before["reused_tokens"]
    assert any(r["reused_tokens"] > 0 for r in got.reports), "no round goes on from a master that came back"
    assert got.tokens == kept.tokens
    rounds.lose()
    got_third = rounds.play(third, "s:3", **how)
    assert check_bytes(seen) > 1500
    assert all(r["restored_tokens"] == r["cached_tokens"] > 400 for r in got_third.reports)
    assert got_third.tokens == kept_third.tokens
    rounds.worker.mirrors.store.check()
    assert not rounds.worker.mirrors.faults


def test_plain_requests_are_not_captured_and_find_nothing_approximate(
    rounds: Rounds, seen: dict[str, list[Any]]
) -> None:
    first = rounds.members(histories=(100, 131))
    truth = rounds.plain(first)
    rounds.round(first)
    rounds.drain()
    assert not seen["captured"]
    rounds.forget()
    rounds.play(first, "s:1", fidelity="fast")
    rounds.lose()
    answers = rounds.play(first, "s:1", fidelity="fast")
    assert all(r["restored_tokens"] > 0 for r in answers.reports)
    assert rounds.round(first, max_tokens=12).tokens == truth
    rounds.lose()
    exact = rounds.play(first, "s:2", fidelity="exact")
    assert exact.tokens == truth
    assert [r["restored_tokens"] for r in exact.reports] == [96, 128]


@pytest.mark.parametrize("when", range(1, 10))
def test_aborts_while_a_capture_or_a_restore_is_pending_leak_no_page(rounds: Rounds, when: int) -> None:
    first = rounds.members(histories=(100, 131, 160))
    answers = rounds.play(first, "s:1", fidelity="fast", max_tokens=3).tokens
    second = next_round(rounds, first, answers)
    rounds.lose()
    steps = Steps(rounds)
    for i, p in enumerate(second):
        fields = {"round_id": "s:2", "round_size": 3, "fidelity": "fast"}
        steps.add(p.agent, p, fields, max_tokens=2 + 2 * i)
    for _ in range(when):
        steps.step()
        rounds.scheduler.check()
    steps.abort(*[p.agent for p in second])
    rounds.scheduler.check()
    rounds.drain()
    rounds.scheduler.check()
    rounds.worker.mirrors.store.check()


def test_preempted_members_are_captured_once_and_leak_no_page(
    rounds: Rounds, seen: dict[str, list[Any]]
) -> None:
    scheduler = rounds.llm.llm_engine.engine_core.engine_core.scheduler
    first = rounds.members(histories=(100, 131, 160))
    truth = rounds.play(first, "s:1", fidelity="fast", max_tokens=12).tokens
    rounds.lose()
    seen["captured"].clear()
    steps = Steps(rounds)
    for p in first:
        steps.add(p.agent, p, {"round_id": "s:1", "round_size": 3, "fidelity": "fast"})
    while len(scheduler.running) < 3:
        steps.step()
        rounds.scheduler.check()
    for _ in range(3):
        victim = scheduler.running.pop()
        scheduler._preempt_request(victim, 0.0)
        steps.step(2)
        rounds.scheduler.check()
    steps.finish()
    rounds.drain()
    rounds.scheduler.check()
    assert len(seen["captured"]) == 3
    assert len(truth) == 3


@pytest.mark.parametrize("method", ["put_mirror", "put_master", "get_mirror", "_look"])
def test_a_fault_of_the_store_costs_work_and_no_answer(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    first = rounds.members(histories=(100, 131, 160))
    truth = rounds.plain(first)
    worker = rounds.worker.mirrors
    faults = dict(worker.faults)

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(worker, method, fail)
    assert rounds.play(first, "s:1", fidelity="exact").tokens == truth
    rounds.drain()
    rounds.scheduler.check()
    rounds.lose()
    assert rounds.play(first, "t:1", backend="all").tokens == truth
    rounds.lose()
    again = rounds.play(first, "s:3", fidelity="exact")
    assert again.tokens == truth
    rounds.drain()
    rounds.scheduler.check()
    restored = [r["restored_tokens"] for r in again.reports]
    assert all(n > 0 for n in restored) if method == "put_master" else restored == [0, 0, 0]
    assert sum(worker.faults.values()) > sum(faults.values())
    monkeypatch.undo()
    worker.faults.clear()


def test_when_there_is_no_room_nothing_is_kept_and_answers_are_right(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rounds.members(histories=(100, 131, 160))
    truth = rounds.plain(first)
    monkeypatch.setattr(rounds.worker.mirrors.store._pool, "budget", 100_000)
    for turn in range(3):
        got = rounds.play(first, f"s:{turn}", fidelity="exact")
        assert got.tokens == truth
        rounds.lose()
        rounds.worker.mirrors.store.check()
    assert rounds.worker.mirrors.status()["refused"] > 0


def test_the_status_names_what_is_stored(rounds: Rounds) -> None:
    rounds.play(rounds.members(), "s:1", fidelity="fast")
    rounds.drain()
    (session,) = rounds.worker.status()["store"]["sessions"]
    assert session["session_id"] == "s"
    assert session["agents"] == 3
    assert session["ratio"] > 1.3
