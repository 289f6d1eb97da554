"""What the support gate refuses, as `TOKENDANCE_TINY` says: plain answers, and everybody is told why."""

from __future__ import annotations

import os
from typing import Any

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
CASE = os.environ.get("TOKENDANCE_TINY", "gemma3")
NGRAMS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
SETTINGS: dict[str, Any] = {
    "gemma3": {"shape": "gemma3"},
    # vLLM takes no logits processors of ours beside speculative decoding.
    "speculative": {"speculative_config": NGRAMS, "logits_processors": None},
}[CASE]


def test_what_is_refused_answers_as_plain_vllm_and_says_why(rounds: Rounds) -> None:
    status = rounds.worker.status()
    assert not status["reuse"]
    assert {"gemma3": "sliding", "speculative": "speculative decoding"}[CASE] in status["reason"]
    assert status["gate"] == f"reuse is off: {status['reason']}"
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, fidelity="fast")
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports if r} == {"unsupported_model"}
    assert {r["reused_tokens"] for r in got.reports if r} == {0}
    assert all(r["gather_ms"] == 0 for r in got.reports if r), "somebody waited for nothing"
