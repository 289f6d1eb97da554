"""Against plain vLLM on the same token ids, in float32: `exact` rounds, and plain requests after approximate rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokendance_sdk.protocol import SEPARATOR
from tokendance_sdk.workload import load_workload
from tokendance_sdk.workload_cut import Cut, cut
from vllm_server import Server

pytestmark = pytest.mark.server

ROUNDS = 3
ANSWER = 12
# Float32 sums differ in their last digits with the shape of a batch, and by far more where other keys were read.
NOISE, VISIBLE = 2e-3, 2e-2


@dataclass(frozen=True, slots=True)
class Member:
    """One prompt: token ids, and the offsets where its segments meet."""

    agent: str
    tokens: list[int]
    segments: list[int]


@dataclass(frozen=True, slots=True)
class Said:
    """One greedy answer: text, the log probability of each of its tokens, TokenDance's report."""

    text: str
    logprobs: list[float]
    report: dict[str, Any] | None


Story = Callable[[str, int], list[list[Member]]]


@pytest.fixture(scope="module")
def story(model_dir: Path) -> Story:
    """Workload and number of agents -> the members of each of its first rounds, cut to a few hundred tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def members(name: str, agents: int) -> list[list[Member]]:
        size = Cut(agents, ROUNDS, history_tokens=150, block_tokens=60)
        workload = cut(load_workload(name), size, encode, tokenizer.decode)
        found = []
        for t in range(ROUNDS):
            prompts = [workload.prompt(agent, t) for agent in workload.agents]
            texts = ["\n\n".join(message["content"] for message in prompt.messages) for prompt in prompts]
            runs = [[encode(text) for text in whole.split(SEPARATOR)] for whole in texts]
            found.append(
                [
                    Member(
                        prompt.agent,
                        list(itertools.chain(*run)),
                        list(itertools.accumulate(map(len, run)))[:-1],
                    )
                    for prompt, run in zip(prompts, runs, strict=True)
                ]
            )
        return found

    return members


def send(server: Server, members: Sequence[Member], tag: dict[str, Any] | None = None) -> list[Said]:
    """All members at once, greedily; `tag` makes them a round."""

    def one(member: Member) -> Said:
        own = {"agent_id": member.agent, "round_size": len(members), "segments": member.segments}
        fields = {"tokendance": {**tag, **own}} if tag is not None else {}
        answer = server.complete(member.tokens, max_tokens=ANSWER, ignore_eos=True, logprobs=1, **fields)
        assert answer.status == 200, answer.body
        (choice,) = answer.body["choices"]
        return Said(choice["text"], choice["logprobs"]["token_logprobs"], answer.body.get("tokendance"))

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, members))


def distance(a: Said, b: Said) -> float:
    """Largest difference of log probabilities; infinite where the texts differ."""
    if a.text != b.text:
        return math.inf
    return max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))


@pytest.mark.parametrize(
    ("name", "agents"), [("ga-ville3-valentine", 3), ("debate-math4", 2), ("nego-harbour7", 2)]
)
def test_exact_rounds_say_what_plain_vllm_says(
    server: Server, plain_server: Server, story: Story, name: str, agents: int
) -> None:
    for t, members in enumerate(story(name, agents)):
        truth = send(plain_server, members)
        got = send(server, members, {"round_id": f"exact-{name}:{t}", "fidelity": "exact"})
        assert [said.text for said in got] == [said.text for said in truth]
        for member, said in zip(members, got, strict=True):
            assert said.report is not None
            assert said.report["prompt_tokens"] == len(member.tokens)
            assert said.report["fallback_reason"] == "exact_requested"
            assert said.report["reused_tokens"] == said.report["approximate_cached_tokens"] == 0


def test_plain_and_exact_requests_after_an_approximate_round_say_what_plain_vllm_says(
    server: Server, plain_server: Server, story: Story
) -> None:
    visible = 0.0
    for t, members in list(enumerate(story("ga-ville3-valentine", 3)))[1:]:
        # A first word of their own: no page of another test's prompt may serve these.
        members = [Member(m.agent, [1000, *m.tokens], [s + 1 for s in m.segments]) for m in members]
        round_id = f"approximate:{t}"
        approximate = send(server, members, {"round_id": round_id, "fidelity": "fast"})
        truth = send(plain_server, members)
        untagged = send(server, members)
        exact = send(server, members, {"round_id": round_id, "fidelity": "exact"})
        for got in (untagged, exact):
            assert [said.text for said in got] == [said.text for said in truth]
            assert max(map(distance, got, truth)) < NOISE
        assert all(said.report is None for said in untagged)
        assert all(said.report and said.report["reused_tokens"] > 0 for said in approximate)
        visible = max(visible, *map(distance, approximate, truth))
    assert visible > VISIBLE, "no round was visibly approximate: the test shows nothing"
