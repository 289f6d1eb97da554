"""Fewer seats than a round has members, less room in a step than one prompt, no asynchronous scheduling."""

from __future__ import annotations

import pytest
from rounds import Rounds
from steps import Steps

pytestmark = pytest.mark.server
SETTINGS = {"async_scheduling": False, "max_num_seqs": 2, "max_num_batched_tokens": 128}
HISTORIES, BLOCKS = (70, 101, 133, 90, 64), (150, 90, 150)
both = pytest.mark.parametrize("placement", ["shared", "copy"])


def test_it_is_as_narrow_as_it_says(rounds: Rounds) -> None:
    config = rounds.llm.llm_engine.vllm_config.scheduler_config
    assert not config.async_scheduling
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (2, 128)


def test_recomputing_everything_equals_full_prefill(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    truth = rounds.plain(prompts)
    got = rounds.play(prompts, backend="all")
    assert got.tokens == truth
    assert all(r["recomputed_tokens"] > 200 and r["group_size"] == 5 for r in got.reports if r)


@both
@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_a_round_answers_alike_however_much_fits_into_a_step(
    rounds: Rounds, fidelity: str, placement: str
) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    narrow = rounds.play(prompts, fidelity=fidelity, placement=placement)
    assert all(r["reused_tokens"] > 100 for r in narrow.reports if r)
    rounds.forget()
    rounds.scribble()
    work = rounds.scheduler._work
    limit, work.limit = work.limit, 4096  # of ours: the whole round in one step
    try:
        wide = rounds.play(prompts, fidelity=fidelity, placement=placement)
    finally:
        work.limit = limit
    assert wide.tokens == narrow.tokens


@both
def test_plain_requests_beside_a_round_are_exact(rounds: Rounds, placement: str) -> None:
    members, others = rounds.members(HISTORIES, BLOCKS), rounds.members((80, 95), BLOCKS)
    truth = rounds.plain(others, max_tokens=20)
    steps = Steps(rounds)
    for i, prompt in enumerate(members):
        tag = {"round_id": "s:1", "round_size": 5, "fidelity": "fast", "placement": placement}
        steps.add(f"m{i}", prompt, tag)
        if i < len(others):
            steps.add(f"o{i}", others[i], max_tokens=20)
        steps.step(2)
    steps.finish()
    assert [steps.tokens(f"o{i}") for i in range(2)] == truth
    assert all(steps.report(f"m{i}")["reused_tokens"] > 100 for i in range(5))
