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


def test_shared_pages_and_copies_of_them_give_the_same_answers(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are shifted in the compiled model's own buffer."""
    from tokendance_engine.adapters.vllm import placement
    from tokendance_engine.reuse.plan import Context

    prompts = rounds.members((70, 101, 133), (150, 150, 150))
    shared = rounds.play(prompts, fidelity="fast", max_tokens=30)
    assert all(r["shared_tokens"] > 0 for r in shared.reports)
    assert any(r["skipped_positions"] for r in shared.reports)
    rounds.forget()
    rounds.scribble()
    unshifted = rounds.plain(prompts, max_tokens=30)
    monkeypatch.setattr(placement, "Context", lambda *args, **more: Context(*args[:-1], share=False, **more))
    copied = rounds.play(prompts, fidelity="fast", max_tokens=30)
    assert copied.tokens == shared.tokens
    assert unshifted != shared.tokens, "the round was not approximate: the test shows nothing"
