"""Members in every state, with shared pages and copies: what happens around one must not change what it answers."""

from __future__ import annotations

import pytest
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server
HISTORIES = (70, 101, 133)
BLOCKS = (150, 90, 150)
FAST = {"fidelity": "fast", "placement": "shared"}
both = pytest.mark.parametrize("placement", ["shared", "copy"])


@both
@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_members_prepared_one_by_one_say_what_members_prepared_together_say(
    rounds: Rounds, fidelity: str, placement: str
) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    together = rounds.play(prompts, fidelity=fidelity, placement=placement)
    assert all(bool(r["shared_tokens"]) == (placement == "shared") for r in together.reports)
    rounds.forget()
    work = rounds.scheduler._work
    limit, work.limit = work.limit, 60
    try:
        serial = rounds.play(prompts, fidelity=fidelity, placement=placement)
    finally:
        work.limit = limit
    assert serial.tokens == together.tokens


@pytest.mark.parametrize("beyond", [-1, 0, 1, 40])
def test_a_cache_hit_that_ends_around_the_start_of_the_region(rounds: Rounds, beyond: int) -> None:
    prompts = rounds.members((96, 128, 160), BLOCKS)
    rounds.round([Prompt(p.agent, p.tokens[: p.boundaries[0] + beyond], []) for p in prompts])
    got = rounds.play(prompts, **FAST)
    for report, prompt in zip(got.reports, prompts, strict=True):
        assert report["cached_tokens"] == (prompt.boundaries[0] + beyond) // 32 * 32
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert sum(report[p] for p in parts) == report["prompt_tokens"] + report["filler_tokens"]
        assert report["reused_tokens"] > 200


def test_the_same_round_twice_shares_the_same_pages_and_says_the_same(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    first = rounds.play(prompts, **FAST)
    again = rounds.play(prompts, **FAST)
    assert again.tokens == first.tokens
    assert all(r["approximate_cached_tokens"] > 200 for r in again.reports)


@both
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_chunks_that_end_around_a_segment(rounds: Rounds, edge: int, placement: str) -> None:
    prompts = rounds.members((64, 64, 64), (150, 90, 150), task=100)
    tag = {"fidelity": "fast", "placement": placement}
    whole = rounds.play(prompts, **tag).tokens
    rounds.forget()
    steps = Steps(rounds)
    with steps.chunks(64 + edge):
        for p in prompts:
            steps.add(p.agent, p, {"round_id": "s:1", "round_size": 3, **tag})
        steps.finish()
    assert [steps.tokens(p.agent) for p in prompts] == whole


def test_a_round_larger_than_the_batch(rounds: Rounds) -> None:
    prompts = rounds.members(tuple(range(40, 60)), BLOCKS)
    got = rounds.play(prompts, max_tokens=3, **FAST)
    assert len(prompts) > 16
    assert all(r["shared_tokens"] > 0 and r["group_size"] == 20 for r in got.reports)
    few = rounds.play(prompts[:4], "t:1", max_tokens=3, **FAST)
    assert all(r["shared_tokens"] > 0 for r in few.reports)


def test_a_straggler_a_double_and_a_wrong_size(rounds: Rounds) -> None:
    prompts = rounds.members((70, 102, 134), BLOCKS)  # of one page phase: any of them makes the same master
    alone = rounds.play(prompts, **FAST).tokens
    rounds.forget()
    first = rounds.play([prompts[2], prompts[2], prompts[1]], **FAST)
    assert first.tokens[0] == first.tokens[1]
    late = rounds.play(prompts[:1], **FAST)
    assert late.reports[0]["role"] == "solo"
    assert late.reports[0]["shared_tokens"] > 0
    assert late.tokens == alone[:1]


@both
@pytest.mark.parametrize("names", [("s:one", "s:two"), ("one:1", "two:1")])
def test_two_rounds_at_once_and_a_round_id_used_again(
    rounds: Rounds, placement: str, names: tuple[str, str]
) -> None:
    tag = {"fidelity": "fast", "placement": placement}
    one, two = rounds.members(HISTORIES, BLOCKS), rounds.members(HISTORIES, BLOCKS)
    truth = []
    for prompts in (one, two):
        truth.append(rounds.play(prompts, **tag).tokens)
        rounds.forget()
    steps = Steps(rounds)
    for i in range(3):
        for name, prompts in zip(names, (one, two), strict=True):
            steps.add(f"{name}{i}", prompts[i], {"round_id": name, "round_size": 3, **tag})
    steps.finish()
    for name, expected in zip(names, truth, strict=True):
        assert [steps.tokens(f"{name}{i}") for i in range(3)] == expected
    assert rounds.play(one, names[1], **tag).tokens == truth[0], "the text counts, not the id"


def test_other_orders_share_what_stands_alike_and_copy_the_rest(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, (150, 150, 150), orders=[[0, 1, 2], [0, 2, 1], [0, 1, 2]])
    reports = rounds.play(prompts, fidelity="fast").reports
    assert all(r["reused_tokens"] > 350 for r in reports)
    assert reports[1]["shared_tokens"] >= 3 * 32
    assert reports[0]["shared_tokens"] == reports[2]["shared_tokens"] > reports[1]["shared_tokens"]


def test_an_agent_that_joins_in_the_second_round_and_one_that_leaves(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    first = rounds.play(prompts[:2], "s:1", **FAST)
    blocks, end = [rounds.random(200), rounds.random(100)], rounds.random(20)
    stays = join("a1", prompts[1].tokens + first.tokens[1], blocks, end)
    stays = Prompt("a1", stays.tokens, prompts[1].boundaries + stays.boundaries)
    joins = join("new", prompts[2].tokens + rounds.random(11), blocks, end)
    joins = Prompt("new", joins.tokens, prompts[2].boundaries + joins.boundaries)
    reports = rounds.play([stays, joins], "s:2", **FAST).reports
    assert reports[0]["approximate_cached_tokens"] > 0
    assert reports[1]["cached_tokens"] == 0
    assert all(r["shared_tokens"] >= 6 * 32 for r in reports)
