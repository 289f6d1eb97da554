"""A model that the support gate refuses (windows in most layers): plain answers, and everybody is told why."""

from __future__ import annotations

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
SETTINGS = {"shape": "gemma3"}


def test_a_refused_model_answers_as_plain_vllm_and_says_why(rounds: Rounds) -> None:
    status = rounds.worker.status()
    assert not status["reuse"]
    assert "sliding" in status["reason"]
    assert status["gate"] == f"reuse is off: {status['reason']}"
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, fidelity="fast")
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"unsupported_model"}
    assert {r["reused_tokens"] for r in got.reports} == {0}
    assert all(r["gather_ms"] == 0 for r in got.reports), "somebody waited for nothing"
