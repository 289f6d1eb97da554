"""The SDK against a real vLLM, with the plugin and without."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI
from tokendance_sdk import Block, RoundPrompt, TokenDance
from tokendance_sdk.protocol import SEPARATOR
from vllm_server import SERVED_NAME, Server

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning"),
]

HISTORIES = {who: f"You are {who}. You live in the village. " * 12 for who in ("klaus", "maria", "eve")}


def client(server: Server) -> TokenDance:
    return TokenDance(OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0))


def arguments(round_id: str, **more: Any) -> dict[str, Any]:
    shared = [Block(f"{who} said that {SEPARATOR} the party begins at five. " * 6, who) for who in HISTORIES]
    agents = [RoundPrompt.assemble(who, text, shared, task="Go.") for who, text in HISTORIES.items()]
    return {
        "model": SERVED_NAME,
        "round_id": round_id,
        "agents": agents,
        "max_tokens": 8,
        "temperature": 0,
        "fidelity": "exact",
        **more,
    }


def test_status_tells_the_two_servers_apart(server: Server, plain_server: Server) -> None:
    status = client(server).status()
    assert status is not None
    assert status["protocol_version"] == 1
    assert client(plain_server).status() is None


def test_a_round_is_answered_and_reported(server: Server) -> None:
    result = client(server).rounds.create(**arguments("sdk:1", fidelity="balanced"), raise_on_error=True)
    assert not result.plain
    assert result.report.totals.reused_tokens > 0
    assert [answer.agent_id for answer in result] == list(HISTORIES)
    for answer in result:
        assert answer.text
        assert answer.report is not None
        assert answer.report.group_size == 3
        assert answer.usage is not None
        assert answer.report.prompt_tokens == answer.usage["prompt_tokens"]


def test_literal_separators_of_the_authors_reach_the_model_as_text(
    server: Server, plain_server: Server
) -> None:
    usages = []
    for each in (server, plain_server):
        (plain,) = [RoundPrompt.assemble("ann", f"a{SEPARATOR}b")]
        result = client(each).rounds.create(**arguments("sdk:2", agents=[plain]), raise_on_error=True)
        usages.append(result["ann"].usage)
    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]  # type: ignore[index]


def test_streamed_pieces_add_up_to_the_same_answers(server: Server) -> None:
    whole = client(server).rounds.create(**arguments("sdk:3"))
    with client(server).rounds.stream(**arguments("sdk:4")) as stream:
        events = list(stream)
        result = stream.result()
    assert result.outputs == whole.outputs
    assert result.usage == whole.usage
    assert SEPARATOR not in json.dumps([event.data for event in events])
    assert all(answer.report is not None for answer in result)


@pytest.mark.parametrize("streamed", [False, True])
def test_one_members_mistake_is_its_own(server: Server, streamed: bool) -> None:
    given = arguments("sdk:5", overrides={"eve": {"max_tokens": 10**6}})
    rounds = client(server).rounds
    result = rounds.stream(**given).result() if streamed else rounds.create(**given)
    assert list(result.outputs) == ["klaus", "maria"]
    assert result["eve"].error is not None
    assert result["eve"].error.status == 400
    assert "max_tokens" in result["eve"].error.message


def test_all_members_failing_is_a_result_too(server: Server) -> None:
    result = client(server).rounds.create(**arguments("sdk:6", max_tokens=10**6))
    assert [answer.error.status for answer in result if answer.error] == [400, 400, 400]


def test_a_plain_vllm_answers_the_same_call(plain_server: Server) -> None:
    result = client(plain_server).rounds.create(**arguments("sdk:7"), raise_on_error=True)
    assert result.plain
    assert list(result.outputs) == list(HISTORIES)
    assert result.report.totals.prompt_tokens == result.usage["prompt_tokens"]


def test_a_session_plays_three_rounds_on_either(server: Server, plain_server: Server) -> None:
    for each in (server, plain_server):
        session = client(each).session(
            "sdk-session",
            model=SERVED_NAME,
            agents=HISTORIES,
            max_tokens=8,
            temperature=0,
            raise_on_error=True,
        )
        sizes = [session.round("Speak.").usage["prompt_tokens"] for _ in range(3)]
        assert sizes[0] < sizes[1] < sizes[2]
