"""Servers that know nothing of rounds: the same results, without separators, after one warning."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import openai
import pytest
from fake_server import CHAT_PATH, FakeServer
from openai import AsyncOpenAI, OpenAI
from test_client import SHARED, both, prompts, run, sync
from tokendance_sdk.client import AsyncTokenDance, PlainServerWarning, TokenDance
from tokendance_sdk.protocol import ROUNDS_PATH, SEPARATOR, STATUS_PATH

pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")


@both
def test_results_are_those_of_a_server_that_knows_rounds(
    rounds_server: FakeServer, plain_server: FakeServer, kind: str
) -> None:
    rounds, plain = run(rounds_server, kind), run(plain_server, kind)
    assert plain.outputs == rounds.outputs
    assert plain.usage == rounds.usage
    assert [answer.choices for answer in plain] == [answer.choices for answer in rounds]
    assert plain.plain
    assert plain.report.totals.reused_tokens == 0
    assert plain.report.totals.prompt_tokens == rounds.report.totals.prompt_tokens


@both
def test_requests_carry_the_authors_text_and_no_trace_of_the_protocol(
    plain_server: FakeServer, kind: str
) -> None:
    run(plain_server, kind, fidelity="fast", session_id="sim", top_k=3, overrides={"eve": {"max_tokens": 2}})
    bodies = plain_server.bodies(CHAT_PATH)
    assert len(bodies) == 3
    for body in bodies:
        content = body["messages"][0]["content"]
        assert content.count(SEPARATOR) == len(SHARED)  # what the authors typed, and nothing of ours
        assert "\u2060" not in content
        assert set(body) <= {"model", "messages", "top_k", "max_tokens"}
        assert body["top_k"] == 3
    assert sorted(body.get("max_tokens", 0) for body in bodies) == [0, 0, 2]


def test_it_is_found_out_once_and_warned_of_once(plain_server: FakeServer) -> None:
    client = sync(plain_server)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(3):
            client.rounds.create(model="m", round_id=f"r:{number}", agents=prompts())
            client.rounds.stream(model="m", round_id=f"r:{number}", agents=prompts()).result()
    (warning,) = caught
    assert warning.category is PlainServerWarning
    assert "knows nothing of rounds" in str(warning.message)
    assert plain_server.paths().count(ROUNDS_PATH) == 1
    assert plain_server.paths().count(STATUS_PATH) == 1
    assert plain_server.paths().count(CHAT_PATH) == 18


def test_concurrent_first_rounds_warn_once(plain_server: FakeServer) -> None:
    async def many() -> list[Any]:
        async with AsyncOpenAI(base_url=plain_server.base_url, api_key="k") as client:
            rounds = AsyncTokenDance(client).rounds
            calls = [rounds.create(model="m", round_id=f"r:{n}", agents=prompts()) for n in range(5)]
            return await asyncio.gather(*calls)

    with pytest.warns(PlainServerWarning) as caught:
        results = asyncio.run(many())
    assert len(caught) == 1
    assert all(len(result.outputs) == 3 for result in results)


def test_a_server_known_to_be_plain_is_not_asked_and_not_warned_of(plain_server: FakeServer) -> None:
    client = TokenDance(OpenAI(base_url=plain_server.base_url, api_key="k"), mode="plain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.rounds.create(model="m", round_id="r", agents=prompts())
    assert set(plain_server.paths()) == {CHAT_PATH}


def test_a_server_said_to_know_rounds_is_not_downgraded(plain_server: FakeServer) -> None:
    client = TokenDance(OpenAI(base_url=plain_server.base_url, api_key="k"), mode="rounds")
    with pytest.raises(openai.NotFoundError):
        client.rounds.create(model="m", round_id="r", agents=prompts())
    with pytest.raises(ValueError, match="got mode 'both'; allowed: auto, rounds, plain"):
        TokenDance(OpenAI(base_url="http://x", api_key="k"), mode="both")  # type: ignore[arg-type]


@both
def test_failures_are_values_and_retried_alone_here_too(plain_server: FakeServer, kind: str) -> None:
    plain_server.failing, plain_server.failures_left = {"maria": 500}, 1
    assert [answer.agent_id for answer in run(plain_server, kind).failed] == ["maria"]
    plain_server.failures_left = 1
    result = run(plain_server, kind, retry_failed=1)
    assert not result.failed
    assert [answer.index for answer in result] == [0, 1, 2]


@both
def test_separators_of_hand_made_messages_are_taken_out(plain_server: FakeServer, kind: str) -> None:
    member = {
        "agent_id": "ann",
        "messages": [{"role": "user", "content": "ann <TTSEP>said<TTSEP> <\u2060TTSEP>"}],
    }
    run(plain_server, kind, agents=[member])
    (body,) = plain_server.bodies(CHAT_PATH)
    assert body["messages"] == [{"role": "user", "content": "ann said <TTSEP>"}]


def test_no_more_requests_at_once_than_asked_for(plain_server: FakeServer) -> None:
    client = TokenDance(OpenAI(base_url=plain_server.base_url, api_key="k"), mode="plain", max_parallel=1)
    assert len(client.rounds.create(model="m", round_id="r", agents=prompts()).outputs) == 3
