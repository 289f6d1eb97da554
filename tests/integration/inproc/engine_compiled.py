"""vLLM's default, the compiled model: it keeps no guards, so virtual batches must come in the runner's own dtypes."""

from __future__ import annotations

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
SETTINGS = {"enforce_eager": False}


def test_recomputing_everything_equals_full_prefill(rounds: Rounds) -> None:
    # A budget of 2,048 tokens and odd lengths: passes of many shapes, down to one token.
    prompts = rounds.members(histories=(70, 101, 133), blocks=(91, 203, 90))
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, backend="all")
    assert got.tokens == truth
    assert all(r["recomputed_tokens"] > 0 for r in got.reports)


def test_a_pass_of_one_token(rounds: Rounds) -> None:
    kv_batch = rounds.worker._need_engine()[1]
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    limit, kv_batch.max_tokens = kv_batch.max_tokens, 1
    try:
        got = rounds.play(prompts[:2], backend="all")
    finally:
        kv_batch.max_tokens = limit
    assert got.tokens == truth[:2]
