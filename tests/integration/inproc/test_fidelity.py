"""What a round's answers are equal to, token for token in float32."""

from __future__ import annotations

from itertools import pairwise

import pytest
from rounds import Rounds, join
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server


def test_exact_gives_what_plain_vllm_gives(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, fidelity="exact")
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"exact_requested"}


def test_recomputing_everything_in_the_virtual_batch_equals_full_prefill(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, backend="all")
    assert got.tokens == truth
    for report, prompt in zip(got.reports, prompts, strict=True):
        # Whole pages: what stands in the last one may be left to vLLM.
        assert 270 - 16 <= report["recomputed_tokens"] <= 270
        assert report["reused_tokens"] == 0
        assert report["fresh_tokens"] + report["recomputed_tokens"] == len(prompt.tokens)
        assert report["fallback_reason"] is None


@pytest.mark.parametrize("placement", ["shared", "copy"])
@pytest.mark.parametrize(("fidelity", "computed"), [("balanced", 3 * 32), ("fast", 0)])
def test_approximate_members_report_every_token_once(
    rounds: Rounds, placement: str, fidelity: str, computed: int
) -> None:
    prompts = rounds.members(orders=[[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    got = rounds.play(prompts, fidelity=fidelity, placement=placement)
    for report, prompt in zip(got.reports, prompts, strict=True):
        assert report["role"] == "member"
        assert report["group_size"] == 3
        assert report["recomputed_tokens"] == computed
        assert 270 - 16 <= report["reused_tokens"] + report["recomputed_tokens"] <= 270
        assert report["matched"] == [list(span) for span in pairwise(prompt.boundaries)]
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert report["prompt_tokens"] == len(prompt.tokens)
        assert sum(report[p] for p in parts) == len(prompt.tokens) + report["filler_tokens"]
        assert (report["placement"] == "copy") == (report["shared_tokens"] == 0)


def test_collective_and_serial_execution_give_the_same_text(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(70, 101, 133, 64))
    together = rounds.play(prompts, fidelity="balanced").tokens
    rounds.forget()
    # A budget of one token admits one member per step.
    work = rounds.scheduler._work
    limit, work.limit = work.limit, 400
    try:
        serial = rounds.play(prompts, fidelity="balanced").tokens
    finally:
        work.limit = limit
    assert serial == together


def test_a_plain_request_gets_the_exact_answer_after_an_approximate_one(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts, max_tokens=60)
    approximate = rounds.play(prompts, fidelity="fast", max_tokens=60)
    assert approximate.tokens != truth, "the round was not approximate: the test shows nothing"
    assert rounds.round(prompts, max_tokens=60).tokens == truth
    # Also when it continues an approximate answer: those pages were filled by decode.
    longer = [
        Prompt(p.agent, p.tokens + answer + rounds.random(9), [])
        for p, answer in zip(prompts, approximate.tokens, strict=True)
    ]
    got = rounds.round(longer, max_tokens=20).tokens
    assert got == rounds.plain(longer, max_tokens=20)


def test_exact_members_never_read_their_own_approximate_history(rounds: Rounds) -> None:
    prompts = rounds.members()
    first = rounds.play(prompts, "s:1", fidelity="fast", max_tokens=40)
    following = [
        Prompt(p.agent, p.tokens + answer + rounds.random(30), [len(p.tokens)])
        for p, answer in zip(prompts, first.tokens, strict=True)
    ]
    got = rounds.play(following, "s:2", fidelity="exact")
    assert got.tokens == rounds.plain(following)


def test_a_member_finds_its_own_approximate_history_in_the_next_round(rounds: Rounds) -> None:
    prompts = rounds.members()
    first = rounds.play(prompts, "s:1", fidelity="balanced", max_tokens=8)
    blocks, end = [rounds.random(200), rounds.random(200)], rounds.random(20)
    following = []
    for p, answer in zip(prompts, first.tokens, strict=True):
        more = join(p.agent, p.tokens + answer, blocks, end)
        following.append(Prompt(p.agent, more.tokens, p.boundaries + more.boundaries))
    got = rounds.play(following, "s:2", fidelity="balanced")
    for report, prompt in zip(got.reports, prompts, strict=True):
        assert report["cached_tokens"] >= len(prompt.tokens) // 32 * 32
        assert report["approximate_cached_tokens"] > 0
        assert report["reused_tokens"] > 0
    # The master went on where it was: both rounds are in one transcript.
    (family,) = rounds.scheduler._families.snapshot()
    assert family["segments"] == 5


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_the_same_round_twice_is_served_from_the_members_own_pages(rounds: Rounds, max_tokens: int) -> None:
    prompts = rounds.members()
    first = rounds.play(prompts, max_tokens=max_tokens)
    again = rounds.play(prompts, max_tokens=max_tokens)
    assert again.tokens == first.tokens
    for report in again.reports:
        assert report["approximate_cached_tokens"] > 0


def test_an_answer_that_tokenizes_differently_is_a_miss_and_still_right(rounds: Rounds) -> None:
    prompts = rounds.members()
    first = rounds.play(prompts, "s:1", backend="all", max_tokens=64)
    blocks, end = [rounds.random(200), rounds.random(200)], rounds.random(20)
    following = []
    for p, answer in zip(prompts, first.tokens, strict=True):
        spelled = answer[:10] + rounds.random(3) + answer[12:]
        more = join(p.agent, p.tokens + spelled, blocks, end)
        following.append(Prompt(p.agent, more.tokens, p.boundaries + more.boundaries))
    got = rounds.play(following, "s:2", backend="all")
    for report, prompt in zip(got.reports, prompts, strict=True):
        assert report["cached_tokens"] == (len(prompt.tokens) + 10) // 32 * 32
        assert report["fallback_reason"] is None
    assert got.tokens == rounds.plain(following)
