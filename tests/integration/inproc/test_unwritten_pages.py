"""vLLM keys a page before it is written: whoever hits it must not read it too early."""

from __future__ import annotations

import pytest
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server


def test_a_member_that_hits_pages_of_a_plain_member_of_the_same_step(rounds: Rounds) -> None:
    # The first member has too little to reuse, so vLLM computes it in the step in which the others are admitted.
    history, blocks, end = rounds.random(200), [rounds.random(150), rounds.random(150)], rounds.random(20)
    small = [rounds.random(40)]
    prompts = [
        join("a0", history, [small[0], rounds.random(40)], end),
        join("a1", history + rounds.random(8), [*small, *blocks], end),
        join("a2", history + rounds.random(16), [*small, *blocks], end),
    ]
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, backend="all")
    assert got.reports[0]["fallback_reason"] == "no_gain"
    assert all(r["recomputed_tokens"] > 0 for r in got.reports[1:]), (
        "nobody was restored: the test shows nothing"
    )
    assert got.tokens == truth


def test_a_member_that_hits_pages_of_a_prefill_that_is_still_going_on(rounds: Rounds) -> None:
    history, blocks, end = rounds.random(600), [rounds.random(150), rounds.random(150)], rounds.random(20)
    long = Prompt("plain", history + rounds.random(100), [])
    prompts = [join(f"a{i}", history + rounds.random(8), blocks, end) for i in range(2)]
    (long_truth, *truth) = rounds.plain([long, *prompts])
    steps = Steps(rounds)
    with steps.chunks(100):
        steps.add("long", long)
        for i, prompt in enumerate(prompts):
            steps.add(f"m{i}", prompt, {"round_id": "s:1", "round_size": 2, "backend": "all"})
        steps.finish()
    assert all(steps.report(f"m{i}")["recomputed_tokens"] > 0 for i in range(2)), "the test shows nothing"
    assert steps.tokens("long") == long_truth
    assert [steps.tokens(f"m{i}") for i in range(2)] == truth
