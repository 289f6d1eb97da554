"""Members that ask for several answers (`n > 1`), and members that were interrupted."""

from __future__ import annotations

import time

import pytest
from rounds import Rounds
from steps import Steps
from tokendance_engine.offline import tag
from vllm import SamplingParams

pytestmark = pytest.mark.server


def test_children_of_one_request_do_not_wait_for_a_round_that_is_complete(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds.scheduler._gather, "cap", 120.0)
    prompts = rounds.members(histories=(70, 101))
    rounds.play(rounds.members(histories=(70, 101)))
    params = [
        tag(
            SamplingParams(n=3, temperature=1.0, max_tokens=2, ignore_eos=True),
            round_id="s:7",
            agent_id=p.agent,
            round_size=2,
            segments=p.boundaries,
        )
        for p in prompts
    ]
    started = time.monotonic()
    outputs = rounds.llm.generate([{"prompt_token_ids": p.tokens} for p in prompts], params, use_tqdm=False)
    assert time.monotonic() - started < 60, "somebody waited for the cap"
    assert all(len(o.outputs) == 3 for o in outputs)


def test_a_preempted_member_reports_what_was_cached_when_it_started(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(90,))
    scheduler = rounds.llm.llm_engine.engine_core.engine_core.scheduler
    steps = Steps(rounds)
    steps.add("alone", prompts[0], {"round_id": "s:1", "round_size": 1}, max_tokens=120)
    steps.step(80)
    (request,) = scheduler.running
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0)
    steps.finish()
    report = steps.report("alone")
    assert report["cached_tokens"] == 0
    assert report["fresh_tokens"] == report["prompt_tokens"] == len(prompts[0].tokens)
