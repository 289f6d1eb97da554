"""In bf16 plain vLLM is not reproducible under another batching; recomputing everything must stay within that."""

from __future__ import annotations

import pytest
from rounds import Rounds
from tokendance_bench.inproc import divergence

pytestmark = pytest.mark.server
SETTINGS = {"dtype": "bfloat16"}


def test_recomputing_everything_is_no_further_from_plain_than_plain_from_itself(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(70, 101, 133, 90))
    answers = [rounds.random(16) for _ in prompts]
    plain = rounds.round(prompts, None, answers)
    rounds.forget()
    alone = [rounds.round([p], None, [a]).logprobs[0] for p, a in zip(prompts, answers, strict=True)]
    rounds.forget()
    ours = rounds.round(prompts, {"round_id": "s:1", "backend": "all"}, answers)
    assert all(r["recomputed_tokens"] > 0 for r in ours.reports)
    rounds.forget()
    fast = rounds.round(prompts, {"round_id": "s:1", "fidelity": "fast"}, answers)
    floor, _ = divergence(plain.logprobs, alone)
    kl, _ = divergence(plain.logprobs, ours.logprobs)
    approximate, _ = divergence(plain.logprobs, fast.logprobs)
    assert kl <= max(3 * floor, 1e-4), f"KL {kl:.2e}, noise floor {floor:.2e}"
    assert approximate > 10 * max(kl, floor), "the comparison could not have told the difference"
