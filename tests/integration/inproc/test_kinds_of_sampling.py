"""Members that ask for structured output, several answers, log-probabilities: each as plain vLLM gives it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from rounds import Rounds
from tokendance_bench.inproc import Prompt
from tokendance_engine.offline import tag
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

pytestmark = pytest.mark.server
HISTORIES, BLOCKS = (70, 101, 133), (150, 90, 150)
WAYS: list[dict[str, Any]] = [
    {"backend": "all"},
    {"fidelity": "fast", "placement": "copy"},
    {"fidelity": "fast", "placement": "shared"},
    {"fidelity": "balanced", "placement": "shared"},
]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way.values()))


def serve(
    rounds: Rounds, prompts: Sequence[Prompt], params: Sequence[SamplingParams], way: dict[str, Any] | None
) -> list[Any]:
    made = [
        one
        if way is None
        else tag(one, round_id="s:1", agent_id=p.agent, round_size=len(prompts), segments=p.boundaries, **way)
        for p, one in zip(prompts, params, strict=True)
    ]
    asked = [{"prompt_token_ids": p.tokens} for p in prompts]
    return list(rounds.llm.generate(asked, made, use_tqdm=False))


def anew(rounds: Rounds) -> None:
    rounds.forget()
    rounds.scribble()


def reports(outputs: Sequence[Any]) -> list[dict[str, Any]]:
    return [o.kv_transfer_params["tokendance"] for o in outputs]


@ways
def test_structured_output_of_some_members_leaves_all_answers_as_they_are(
    rounds: Rounds, way: dict[str, Any]
) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    free = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    bound = SamplingParams(
        temperature=0, max_tokens=30, structured_outputs=StructuredOutputsParams(regex="(red|blue){3}!")
    )
    alone = serve(rounds, prompts, [free] * 3, way)
    anew(rounds)
    truth = serve(rounds, prompts, [free, bound, free], None)
    anew(rounds)
    got = serve(rounds, prompts, [free, bound, free], way)
    assert re.fullmatch("(red|blue){3}!", got[1].outputs[0].text), got[1].outputs[0].text
    for i in (0, 2):
        assert got[i].outputs[0].token_ids == alone[i].outputs[0].token_ids
    if "backend" in way:
        assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in truth]
    used = "recomputed_tokens" if "backend" in way else "reused_tokens"
    assert all(r[used] > 100 and r["group_size"] == 3 for r in reports(got))


@ways
def test_several_answers_with_log_probabilities(rounds: Rounds, way: dict[str, Any]) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    params = [SamplingParams(n=2, temperature=0.7, seed=5, max_tokens=6, ignore_eos=True, logprobs=3)] * 3
    truth = serve(rounds, prompts, params, None)
    anew(rounds)
    got = serve(rounds, prompts, params, way)
    for mine, plain in zip(got, truth, strict=True):
        assert len(mine.outputs) == 2
        for answer, wanted in zip(mine.outputs, plain.outputs, strict=True):
            assert len(answer.logprobs) == len(answer.token_ids) == 6
            assert all(token in step for token, step in zip(answer.token_ids, answer.logprobs, strict=True))
            if "backend" in way:
                assert answer.token_ids == wanted.token_ids
                for step, other in zip(answer.logprobs, wanted.logprobs, strict=True):
                    assert {t: pytest.approx(x.logprob, abs=1e-3) for t, x in other.items()} == {
                        t: x.logprob for t, x in step.items()
                    }
    assert all(r["group_size"] == 3 for r in reports(got)), "children were counted as members"


def test_log_probabilities_of_the_prompt_are_those_of_the_users_own_tokens(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    params = [SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=0)] * 3
    truth = serve(rounds, prompts, params, None)
    anew(rounds)
    got = serve(rounds, prompts, params, WAYS[2])
    assert {r["fallback_reason"] for r in reports(got)} == {"unsupported_request"}
    for mine, plain, prompt in zip(got, truth, prompts, strict=True):
        assert list(mine.prompt_token_ids) == prompt.tokens
        assert len(mine.prompt_logprobs) == len(prompt.tokens)
        for token, step, other in list(
            zip(prompt.tokens, mine.prompt_logprobs, plain.prompt_logprobs, strict=True)
        )[1:]:
            assert step[token].logprob == pytest.approx(other[token].logprob, abs=1e-3)
