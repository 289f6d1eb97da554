"""Histories that vLLM's prefix cache loses between rounds come back from the store."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rounds import Rounds, join
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
    blocks, end = [rounds.random(80) for _ in range(new)], rounds.random(15)
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
        assert now["fallback_reason"] in (None, "no_gain")
    rounds.lose()
    got_third = rounds.play(third, "s:3", **how)
    assert check_bytes(seen) > 1500
    assert all(r["restored_tokens"] == r["cached_tokens"] > 400 for r in got_third.reports)
    if got.reports[0]["fallback_reason"] == kept.reports[0]["fallback_reason"]:
        assert got.tokens == kept.tokens
    rounds.worker.mirrors.store.check()
    assert not rounds.worker.mirrors.faults
    assert len(kept_third.tokens) == 3
