"""An AutoGen team that speaks in rounds: real AgentChat, real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from fake_server import CHAT_PATH, FakeServer, serving
from tokendance_sdk.protocol import ROUNDS_PATH
from tokendance_sdk.results import RoundResult
from tokendance_sdk.rounds_protocol import RoundRequest

pytest.importorskip("autogen_agentchat", reason="AutoGen cannot be installed beside LMCache: make test-sdk")

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import BaseChatMessage, ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from tokendance_sdk.integrations.autogen import BroadcastGroupChat, TokenDanceChatCompletionClient

NAMES = ("klaus", "maria", "eve")
pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")


def model(server: FakeServer, **options: Any) -> TokenDanceChatCompletionClient:
    given = {"base_url": server.base_url, "api_key": "k", "max_retries": 0, **options}
    return TokenDanceChatCompletionClient(model="m", **given)


def people(client: Any, names: Sequence[str] = NAMES, **options: Any) -> list[Any]:
    return [AssistantAgent(n, model_client=client, system_message=f"{n} lives.", **options) for n in names]


def team(server: FakeServer, rounds: int = 3, **options: Any) -> BroadcastGroupChat:
    agents = people(model(server), model_client_stream=options.pop("stream", False))
    return BroadcastGroupChat(agents, **{"max_turns": rounds, "session_id": "sim", **options})


def requests(server: FakeServer) -> list[RoundRequest]:
    return [RoundRequest.model_validate(body) for body in server.bodies(ROUNDS_PATH)]


def texts(request: RoundRequest, agent: str) -> list[tuple[str, str]]:
    (found,) = [each for each in request.agents if each.agent_id == agent]
    return [(m["role"], m["content"]) for m in request.chat_body(found, plain=True)["messages"]]


def said(result: TaskResult) -> list[tuple[str, str]]:
    return sorted((m.source, m.to_text()) for m in result.messages)


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both
async def test_each_round_is_one_request_and_everybody_hears_everybody(
    rounds_server: FakeServer, stream: bool
) -> None:
    result = await team(rounds_server, stream=stream).run(task="go")
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    assert [(r.round_id, r.session_id) for r in requests(rounds_server)] == [
        (f"sim:{n}", "sim") for n in range(3)
    ]
    assert [[a.agent_id for a in r.agents] for r in requests(rounds_server)] == [list(NAMES)] * 3
    assert texts(requests(rounds_server)[1], "maria") == [
        ("system", "maria lives."),
        ("user", "go"),
        ("assistant", "re: go"),
        ("user", "re: go"),
        ("user", "re: go"),
    ]
    assert len(result.messages) == 1 + 3 * 3
    assert result.stop_reason is not None
    assert "3" in result.stop_reason


async def test_others_are_heard_in_the_participants_order_whoever_was_first(
    rounds_server: FakeServer,
) -> None:
    rounds_server.slow = {"klaus": 0.2}  # a streamed klaus is the last to answer
    await team(rounds_server, 2, stream=True).run(task="go")
    names = [m.get("name") for m in requests(rounds_server)[1].agents[2].messages]
    assert names == [None, "user", None, "klaus", "maria"]


@both
async def test_a_plain_server_gives_the_same_conversation(
    rounds_server: FakeServer, plain_server: FakeServer, stream: bool
) -> None:
    with_rounds, plain = [
        await team(each, stream=stream).run(task="go") for each in (rounds_server, plain_server)
    ]
    assert said(with_rounds) == said(plain)
    assert plain_server.paths()[2:] == [CHAT_PATH] * 9


async def test_a_termination_condition_sees_all_messages_of_a_round(rounds_server: FakeServer) -> None:
    stopped = await team(rounds_server, None, termination_condition=MaxMessageTermination(7)).run(task="go")  # type: ignore[arg-type]
    assert len(stopped.messages) == 7
    mentioned = TextMentionTermination("re: re:", sources=["klaus"])
    first = await team(rounds_server, 9, termination_condition=mentioned).run(task="go")
    assert len(first.messages) == 1 + 2 * 3


async def test_streamed_chunks_carry_their_agent(rounds_server: FakeServer) -> None:
    chunks: dict[str, str] = {}
    async for item in team(rounds_server, 1, stream=True).run_stream(task="go"):
        if isinstance(item, ModelClientStreamingChunkEvent):
            chunks[item.source] = chunks.get(item.source, "") + item.content
    assert chunks == dict.fromkeys(NAMES, "re: go")


async def test_64_agents_and_3_rounds_lose_and_double_nothing(rounds_server: FakeServer) -> None:
    names = [f"agent_{n}" for n in range(64)]
    chat = BroadcastGroupChat(people(model(rounds_server), names), max_turns=3)
    result = await chat.run(task="go")
    assert len(result.messages) == 1 + 3 * 64
    assert sorted(m.source for m in result.messages[1:]) == sorted(names * 3)
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    last = requests(rounds_server)[2]
    assert all(len(agent.messages) == 1 + 1 + 2 * 64 for agent in last.agents)
    assert all(
        sum(len(k) + len(v) for k, v in headers.items()) < 1000 for _, _, headers, _ in rounds_server.seen
    )


async def test_a_tool_loop_goes_on_alone_and_tagged() -> None:
    """The server of this test asks for a tool at first."""
    with serving(FakeServer(tool="clock")) as server:

        def clock() -> str:
            return "It is noon."

        agents = people(model(server), ("klaus", "maria"), tools=[clock], reflect_on_tool_use=True)
        result = await BroadcastGroupChat(agents, max_turns=1, session_id="sim").run(task="go")
    assert server.paths() == [ROUNDS_PATH, CHAT_PATH, CHAT_PATH]
    tags = [body["tokendance"] for body in server.bodies(CHAT_PATH)]
    assert sorted((t["round_id"], t["agent_id"], t["session_id"]) for t in tags) == [
        ("sim:0.1", "klaus", "sim"),
        ("sim:0.1", "maria", "sim"),
    ]
    assert [m.to_text() for m in result.messages if isinstance(m, TextMessage)][1:] == ["re: It is noon."] * 2


async def test_a_saved_team_goes_on_with_the_same_requests(rounds_server: FakeServer) -> None:
    chat = team(rounds_server, 2)
    await chat.run(task="go")
    again = team(rounds_server, 2, session_id=None)
    await again.load_state(json.loads(json.dumps(await chat.save_state())))
    for each in (chat, again):
        await each.run(task="more")
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert bodies[2:4] == bodies[4:6]
    assert bodies[5]["round_id"] == "sim:3"


async def test_a_reset_team_has_forgotten_and_uses_no_round_id_twice(rounds_server: FakeServer) -> None:
    chat = team(rounds_server, 1)
    await chat.run(task="go")
    await chat.reset()
    await chat.run(task="again")
    assert [r.round_id for r in requests(rounds_server)] == ["sim:0", "sim:1"]
    assert texts(requests(rounds_server)[1], "eve")[1:] == [("user", "again")]


async def test_a_team_is_a_component(rounds_server: FakeServer) -> None:
    chat = team(rounds_server, 2, fidelity="exact", termination_condition=MaxMessageTermination(50))
    again = BroadcastGroupChat.load_component(json.loads(chat.dump_component().model_dump_json()))
    results = []
    for each in (chat, again):
        results.append(said(await each.run(task="go")))
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert results[0] == results[1]
    assert bodies[:2] == bodies[2:]
    assert bodies[0]["fidelity"] == "exact"


class Parrot(BaseChatAgent):
    """A participant without a model."""

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        return Response(chat_message=TextMessage(content="Polly.", source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        pass


async def test_a_participant_without_a_model_holds_nobody_up(rounds_server: FakeServer) -> None:
    agents = [*people(model(rounds_server)), Parrot("polly", "a parrot")]
    await BroadcastGroupChat(agents, max_turns=2, patience=None).run(task="go")
    assert rounds_server.paths() == [ROUNDS_PATH] * 2
    assert ("user", "Polly.") in texts(requests(rounds_server)[1], "eve")


async def test_a_team_can_be_a_participant(rounds_server: FakeServer) -> None:
    inner = RoundRobinGroupChat(people(model(rounds_server), ("ida",)), name="inner", max_turns=1)
    chat = BroadcastGroupChat([*people(model(rounds_server)), inner], max_turns=1)
    result = await chat.run(task="go")
    assert {m.source for m in result.messages} == {"user", *NAMES, "ida"}
    assert [a.agent_id for a in requests(rounds_server)[0].agents] == [*NAMES, "inner"]


async def test_outside_a_broadcast_the_client_is_the_ordinary_one(rounds_server: FakeServer) -> None:
    client = model(rounds_server)
    answer = await client.create([UserMessage(content="eve?", source="user")])
    assert answer.content == "re: eve?"
    assert rounds_server.paths() == [CHAT_PATH]
    assert (
        TokenDanceChatCompletionClient.load_component(client.dump_component()).model_info == client.model_info
    )
    await client.close()


async def test_on_round_sees_every_round(rounds_server: FakeServer) -> None:
    seen: list[RoundResult] = []
    await team(rounds_server, 2, on_round=seen.append).run(task="go")
    assert [(r.round_id, r.report.totals.reused_tokens) for r in seen] == [("sim:0", 21), ("sim:1", 21)]


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0.01)
    left = [t for t in asyncio.all_tasks() if "send" in repr(t.get_coro()) and "Series" in repr(t.get_coro())]
    assert not left
