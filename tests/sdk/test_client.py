"""Whole rounds through an OpenAI client, over real HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest
from fake_server import CHAT_PATH, FakeServer
from openai import AsyncOpenAI, OpenAI
from tokendance_sdk.blocks import Block
from tokendance_sdk.client import AsyncTokenDance, TokenDance
from tokendance_sdk.errors import PromptError, RoundFailedError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.protocol import ROUNDS_PATH, SEPARATOR
from tokendance_sdk.wire import Mode

SHARED = [Block(f"{who} spoke of {SEPARATOR} at length.", who) for who in ("klaus", "maria", "eve")]


def prompts(agents: tuple[str, ...] = ("klaus", "maria", "eve")) -> list[RoundPrompt]:
    return [
        RoundPrompt.assemble(who, f"{who} lives here.", SHARED, Layout.rotated(), "Go.") for who in agents
    ]


def sync(server: FakeServer, **options: Any) -> TokenDance:
    return TokenDance(OpenAI(base_url=server.base_url, api_key="secret", max_retries=0, **options))


def twin(server: FakeServer, **options: Any) -> AsyncTokenDance:
    return AsyncTokenDance(AsyncOpenAI(base_url=server.base_url, api_key="secret", max_retries=0, **options))


def run(server: FakeServer, kind: str, /, mode: Mode = "auto", **arguments: Any) -> Any:
    """`rounds.create` of either client."""
    arguments = {"model": "m", "round_id": "sim:1", "agents": prompts(), **arguments}
    if kind == "sync":
        with sync(server).client as client:
            return TokenDance(client, mode=mode).rounds.create(**arguments)

    async def create() -> Any:
        async with twin(server).client as client:
            return await AsyncTokenDance(client, mode=mode).rounds.create(**arguments)

    return asyncio.run(create())


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_a_round_is_one_request_and_answers_come_in_request_order(
    rounds_server: FakeServer, kind: str
) -> None:
    result = run(rounds_server, kind, max_tokens=5)
    assert rounds_server.paths() == [ROUNDS_PATH]
    assert [answer.agent_id for answer in result] == ["klaus", "maria", "eve"]
    assert {who: text.removeprefix("re: ") for who, text in result.outputs.items()} == {
        prompt.agent: prompt.plain_messages[-1]["content"] for prompt in prompts()
    }
    assert result["eve"].report.reused_tokens == 7
    assert result.report.totals.reused_tokens == 21
    assert result.usage["completion_tokens"] == 6
    assert not result.plain


@both
def test_shared_text_travels_once_and_headers_stay_small_with_64_agents(
    rounds_server: FakeServer, kind: str
) -> None:
    text = "a long story " * 400
    shared = [Block(f"{n} {text}", f"agent{n}") for n in range(64)]
    agents = [RoundPrompt.assemble(f"agent{n}", "h", shared, Layout.shuffled(1)) for n in range(64)]
    result = run(rounds_server, kind, agents=agents)
    (_, _, headers, body), *rest = rounds_server.seen
    assert not rest
    assert sum(len(name) + len(value) + 4 for name, value in headers.items()) < 1024
    for n in range(64):
        assert str(body).count(f"{n} {text}") == len([m for m in range(64) if str(m).endswith(str(n))])
    assert len(result.outputs) == 64


@both
def test_a_members_failure_is_a_value(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.failing = {"maria": 400}
    result = run(rounds_server, kind)
    assert [answer.agent_id for answer in result.failed] == ["maria"]
    assert result["maria"].error.message == "refused with 400"
    assert result["maria"].error.status == 400
    assert list(result.outputs) == ["klaus", "eve"]
    assert [block.owner for block in result.blocks] == ["klaus", "eve"]
    assert result.report.failed == {"maria": "refused with 400"}


@both
def test_all_members_failing_is_still_a_result(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.failing = dict.fromkeys(("klaus", "maria", "eve"), 422)
    result = run(rounds_server, kind)
    assert len(result.failed) == 3
    assert rounds_server.paths() == [ROUNDS_PATH]


@both
def test_raise_on_error_names_the_members_and_keeps_the_rest(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.failing = {"maria": 400}
    with pytest.raises(
        RoundFailedError, match=r"1 of 3 members of round 'sim:1' failed: maria: refused"
    ) as raised:
        run(rounds_server, kind, raise_on_error=True)
    assert list(raised.value.result.outputs) == ["klaus", "eve"]


@both
@pytest.mark.parametrize("deadline", [None, 30.0])
def test_only_failed_members_are_sent_again_under_the_same_round_id(
    rounds_server: FakeServer, kind: str, deadline: float | None
) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 503}, 1
    result = run(rounds_server, kind, retry_failed=2, deadline=deadline)
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert [[agent["agent_id"] for agent in body["agents"]] for body in bodies] == [
        ["klaus", "maria", "eve"],
        ["maria"],
    ]
    assert {body["round_id"] for body in bodies} == {"sim:1"}
    assert [answer.agent_id for answer in result if answer.ok] == ["klaus", "maria", "eve"]


@both
def test_a_members_own_mistake_is_not_sent_again(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.failing = {"maria": 400}
    run(rounds_server, kind, retry_failed=5)
    assert rounds_server.paths() == [ROUNDS_PATH]


@both
def test_overrides_reach_their_agent_alone(rounds_server: FakeServer, kind: str) -> None:
    run(
        rounds_server,
        kind,
        overrides={"eve": {"fidelity": "exact", "max_tokens": 1}},
        fidelity="fast",
        top_k=4,
    )
    (body,) = rounds_server.bodies(ROUNDS_PATH)
    assert (body["fidelity"], body["top_k"]) == ("fast", 4)
    assert [agent.get("fidelity") for agent in body["agents"]] == [None, None, "exact"]
    assert body["agents"][2]["max_tokens"] == 1


@both
def test_tools_and_structured_output_reach_the_server_and_calls_come_back(
    rounds_server: FakeServer, kind: str
) -> None:
    rounds_server.tool = "look_up"
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    shape = {"type": "json_schema", "json_schema": {"name": "plan", "schema": {"type": "object"}}}
    result = run(rounds_server, kind, tools=tools, overrides={"eve": {"response_format": shape}})
    (body,) = rounds_server.bodies(ROUNDS_PATH)
    assert body["tools"] == tools
    assert [agent.get("response_format") for agent in body["agents"]] == [None, None, shape]
    for answer in result:
        assert answer.text == ""
        assert answer.finish_reason == "tool_calls"
        assert [call["function"]["name"] for call in answer.message["tool_calls"]] == ["look_up"]


@both
def test_the_wrapped_clients_key_headers_and_query_are_used(rounds_server: FakeServer, kind: str) -> None:
    run(rounds_server, kind, extra_headers={"X-Team": "blue"}, extra_body={"seed": 3})
    ((_, _, headers, body),) = rounds_server.seen
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["authorization"] == "Bearer secret"
    assert sent["x-team"] == "blue"
    assert body["seed"] == 3


@both
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"round_id": "a b"}, "round_id: got 'a b'; allowed"),
        ({"agents": prompts(("eve", "eve"))}, "'eve' is there twice"),
        ({"agents": []}, "got 0 agents"),
        ({"agents": ["klaus"]}, "got agent 'klaus'; allowed: a RoundPrompt"),
        ({"stream": True}, "got stream=True; allowed"),
        ({"overrides": {"bob": {}}}, "unknown agent 'bob'; agents of this round: klaus, maria, eve"),
    ],
)
def test_a_malformed_round_is_refused_before_it_is_sent(
    rounds_server: FakeServer, kind: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(PromptError, match=said):
        run(rounds_server, kind, **change)
    assert rounds_server.seen == []


@both
def test_a_missing_model_is_the_servers_error_not_a_plain_server(
    rounds_server: FakeServer, kind: str
) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        run(rounds_server, kind, model="no-such-model")
    assert CHAT_PATH not in rounds_server.paths()


@both
@pytest.mark.parametrize("knows_rounds", [True, False])
def test_a_straggler_is_cut_off_and_the_others_stay(
    rounds_server: FakeServer, plain_server: FakeServer, kind: str, knows_rounds: bool
) -> None:
    server = rounds_server if knows_rounds else plain_server
    server.slow = {"maria": 8.0}
    started = time.monotonic()
    result = run(server, kind, mode="rounds" if knows_rounds else "plain", deadline=2.0)
    assert time.monotonic() - started < 6
    assert list(result.outputs) == ["klaus", "eve"]
    assert result["maria"].error.type == "deadline"


async def test_cancelling_aborts_the_request_on_the_server(rounds_server: FakeServer) -> None:
    rounds_server.slow = dict.fromkeys(("klaus", "maria", "eve"), 0.5)
    owner = twin(rounds_server)
    async with owner.client, owner.rounds.stream(model="m", round_id="r", agents=prompts()) as stream:
        async for event in stream:
            assert event.kind == "chunk"
            break
    assert await asyncio.to_thread(rounds_server.aborted.wait, 10)


def test_status_is_what_the_server_says_or_none(rounds_server: FakeServer, plain_server: FakeServer) -> None:
    assert sync(rounds_server).status() == {"version": "0", "protocol_version": 1}
    assert sync(plain_server).status() is None


async def test_status_of_the_async_twin(rounds_server: FakeServer, plain_server: FakeServer) -> None:
    for server, said in ((rounds_server, {"version": "0", "protocol_version": 1}), (plain_server, None)):
        owner = twin(server)
        async with owner.client:
            assert await owner.status() == said


def test_an_unknown_agent_of_a_result_is_named(rounds_server: FakeServer) -> None:
    with pytest.raises(KeyError, match="no agent 'bob' in round 'sim:1'; agents: klaus, maria, eve"):
        run(rounds_server, "sync")["bob"]
