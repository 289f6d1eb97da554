"""AG2 agents that speak in rounds: real agents, real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fake_server import CHAT_PATH, FakeServer, serving
from openai import APIConnectionError, RateLimitError
from tokendance_sdk.errors import MemberFailedError, PromptError
from tokendance_sdk.protocol import ROUNDS_PATH, SEPARATOR
from tokendance_sdk.results import RoundResult
from tokendance_sdk.rounds_protocol import RoundRequest

pytest.importorskip("ag2", reason="AG2 needs openai 3.x, the engine's environment has 2.x: make test-sdk")

from ag2 import Agent
from ag2.events import ModelMessageChunk
from tokendance_sdk.integrations.ag2 import Broadcast, TokenDanceConfig

NAMES = ("klaus", "maria", "eve")
pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def config(server: FakeServer, **options: Any) -> TokenDanceConfig:
    return TokenDanceConfig("m", base_url=server.base_url, api_key="k", **{"max_retries": 0, **options})


def people(
    server: FakeServer, names: Sequence[str] = NAMES, *, stream: bool = False, **options: Any
) -> list[Any]:
    own = config(server, streaming=stream)
    return [Agent(name, prompt=f"{name} lives.", config=own, **options) for name in names]


def broadcast(server: FakeServer, *, stream: bool = False, **options: Any) -> Broadcast:
    return Broadcast(people(server, stream=stream), **{"session_id": "sim", **options})


def requests(server: FakeServer) -> list[RoundRequest]:
    return [RoundRequest.model_validate(body) for body in server.bodies(ROUNDS_PATH)]


def texts(request: RoundRequest, agent: str) -> list[tuple[str, str]]:
    (found,) = [each for each in request.agents if each.agent_id == agent]
    return [(m["role"], m["content"]) for m in request.chat_body(found, plain=True)["messages"]]


@both
async def test_each_round_is_one_request_and_everybody_hears_the_others(
    rounds_server: FakeServer, stream: bool
) -> None:
    done = await broadcast(rounds_server, stream=stream).run("go", rounds=3)
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    assert [(r.round_id, r.session_id) for r in requests(rounds_server)] == [
        (f"sim:{n}", "sim") for n in range(3)
    ]
    assert [[a.agent_id for a in r.agents] for r in requests(rounds_server)] == [list(NAMES)] * 3
    assert done[0].outputs == dict.fromkeys(NAMES, "re: go")
    assert texts(requests(rounds_server)[1], "maria") == [
        ("system", "maria lives."),
        ("user", "go"),
        ("assistant", "re: go"),
        ("user", "\n[klaus]\nre: go\n[eve]\nre: go"),
    ]
    (maria,) = [a for a in requests(rounds_server)[1].agents if a.agent_id == "maria"]
    wire = requests(rounds_server)[1].chat_body(maria)["messages"][-1]["content"]
    assert f"{SEPARATOR}re: go{SEPARATOR}" in wire


@both
async def test_a_plain_server_gives_the_same_conversation(
    rounds_server: FakeServer, plain_server: FakeServer, stream: bool
) -> None:
    talks = [
        [r.outputs for r in await broadcast(each, stream=stream).run("go", rounds=3)]
        for each in (rounds_server, plain_server)
    ]
    assert talks[0] == talks[1]
    assert plain_server.paths()[2:] == [CHAT_PATH] * 9


async def test_until_ends_a_run(rounds_server: FakeServer) -> None:
    done = await broadcast(rounds_server).run("go", rounds=9, until=lambda r: "[maria]" in r.outputs["eve"])
    assert len(done) == 2


async def test_chunks_arrive_on_the_agents_streams(rounds_server: FakeServer) -> None:
    talk = broadcast(rounds_server, stream=True)
    heard: list[str] = []

    def hear(event: ModelMessageChunk) -> None:
        heard.append(event.content)

    talk.stream("maria").where(ModelMessageChunk).subscribe(hear)
    await talk.round("go")
    assert len(heard) > 1
    assert "".join(heard) == "re: go"


async def test_64_agents_and_3_rounds_lose_and_double_nothing(rounds_server: FakeServer) -> None:
    names = [f"agent-{n}" for n in range(64)]
    rounds_server.answer = "I say it."
    done = await Broadcast(people(rounds_server, names)).run("go", rounds=3)
    assert [list(r.replies) for r in done] == [names] * 3
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    for agent in requests(rounds_server)[2].agents:
        content = agent.messages[-1]["content"]
        assert sum(part == content[1] for part in content) == 63
    assert all(
        sum(len(k) + len(v) for k, v in headers.items()) < 1000 for _, _, headers, _ in rounds_server.seen
    )


async def test_a_tool_loop_goes_on_alone_and_tagged() -> None:
    with serving(FakeServer(tool="clock")) as server:

        def clock() -> str:
            """Tell the time."""
            return "It is noon."

        talk = Broadcast(people(server, ("klaus", "maria"), tools=[clock]), session_id="sim")
        replies = await talk.round("go")
    assert server.paths() == [ROUNDS_PATH, CHAT_PATH, CHAT_PATH]
    tags = [body["tokendance"] for body in server.bodies(CHAT_PATH)]
    assert sorted((t["round_id"], t["agent_id"], t["session_id"]) for t in tags) == [
        ("sim:0.1", "klaus", "sim"),
        ("sim:0.1", "maria", "sim"),
    ]
    assert replies.outputs == dict.fromkeys(("klaus", "maria"), "re: It is noon.")


async def test_a_failed_agent_raises_and_only_it_is_asked_again(rounds_server: FakeServer) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    talk = broadcast(rounds_server)
    with pytest.raises(MemberFailedError, match="maria"):
        await talk.round("go")
    replies = await talk.round("go")
    assert list(replies.replies) == list(NAMES)
    sent = [(r.round_id, [a.agent_id for a in r.agents]) for r in requests(rounds_server)]
    assert sent == [("sim:0", list(NAMES)), ("sim:0", ["maria"])]
    assert texts(requests(rounds_server)[0], "maria") == texts(requests(rounds_server)[1], "maria")


async def test_a_skipped_agent_says_nothing_this_round(rounds_server: FakeServer) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 400}, 1
    first, second = await broadcast(rounds_server, on_failure="skip").run("go", rounds=2)
    assert (list(first.replies), list(first.failed)) == (["klaus", "eve"], ["maria"])
    assert list(second.replies) == list(NAMES)
    assert texts(requests(rounds_server)[1], "klaus")[-1] == ("user", "\n[eve]\nre: go")


async def test_all_failing_raises_even_where_failures_are_skipped(rounds_server: FakeServer) -> None:
    rounds_server.refuse = [429]
    with pytest.raises(RateLimitError):
        await broadcast(rounds_server, on_failure="skip").round("go")


async def test_a_member_that_always_fails_is_retried_alone_and_then_given_up(
    rounds_server: FakeServer,
) -> None:
    rounds_server.failing = {"maria": 500}
    replies = await broadcast(rounds_server, retry_failed=2, on_failure="skip").round("go")
    assert [len(r.agents) for r in requests(rounds_server)] == [3, 1, 1]
    assert list(replies.failed) == ["maria"]


@both
async def test_a_dying_server_is_an_error_and_leaves_the_histories_as_they_were(
    rounds_server: FakeServer, stream: bool
) -> None:
    rounds_server.dies = True
    talk = broadcast(rounds_server, stream=stream)
    before = await talk.state()
    async with asyncio.timeout(20):
        with pytest.raises(Exception) as caught:
            await talk.round("go")
    assert stream or isinstance(caught.value, APIConnectionError)
    assert await talk.state() == {**before, "series": (await talk.state())["series"]}
    rounds_server.dies = False
    assert (await talk.round("go")).outputs == dict.fromkeys(NAMES, "re: go")


async def test_a_straggler_is_cut_off(rounds_server: FakeServer) -> None:
    rounds_server.slow = {"eve": 30}
    async with asyncio.timeout(20):
        replies = await broadcast(rounds_server, deadline=0.5, on_failure="skip").round("go")
    assert list(replies.replies) == ["klaus", "maria"]


async def test_a_cancelled_round_can_be_played_again(rounds_server: FakeServer) -> None:
    rounds_server.delay = 2
    talk = broadcast(rounds_server)
    task = asyncio.create_task(talk.round("go"))
    async with asyncio.timeout(20):
        while not rounds_server.bodies(ROUNDS_PATH):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    rounds_server.delay = 0
    assert (await talk.round("go")).outputs == dict.fromkeys(NAMES, "re: go")
    first, second = rounds_server.bodies(ROUNDS_PATH)
    assert first == second


async def test_a_loaded_broadcast_goes_on_with_the_same_requests(rounds_server: FakeServer) -> None:
    talk = broadcast(rounds_server)
    await talk.run("go", rounds=2)
    again = broadcast(rounds_server, session_id=None)
    await again.load(json.loads(json.dumps(await talk.state())))
    for each in (talk, again):
        await each.round("more")
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert bodies[2] == bodies[3]
    assert bodies[3]["round_id"] == "sim:2"


async def test_on_round_sees_every_round(rounds_server: FakeServer) -> None:
    seen: list[RoundResult] = []
    await broadcast(rounds_server, on_round=seen.append).run("go", rounds=2)
    assert [(r.round_id, r.report.totals.reused_tokens) for r in seen] == [("sim:0", 21), ("sim:1", 21)]


async def test_each_agent_can_have_its_own_task(rounds_server: FakeServer) -> None:
    replies = await broadcast(rounds_server).round({"klaus": "write", "maria": "play", "eve": "rest"})
    assert replies.outputs == {"klaus": "re: write", "maria": "re: play", "eve": "re: rest"}


async def test_what_is_wrong_is_said_before_anything_is_sent(rounds_server: FakeServer) -> None:
    talk = broadcast(rounds_server)
    with pytest.raises(PromptError, match="unknown agent 'bob'; agents: klaus, maria, eve"):
        await talk.round({"bob": "go"})
    with pytest.raises(PromptError, match="'klaus' has nothing to answer to"):
        await talk.round()
    with pytest.raises(PromptError, match="each name once"):
        Broadcast(people(rounds_server, ("a", "a")))
    with pytest.raises(PromptError, match="state of agents"):
        await talk.load({"histories": {}, "series": {}, "said": {}})
    assert rounds_server.seen == []


async def test_outside_a_broadcast_the_config_is_the_ordinary_one(rounds_server: FakeServer) -> None:
    (klaus,) = people(rounds_server, ("klaus",))
    assert (await klaus.ask("go")).body == "re: go"
    assert rounds_server.paths() == [CHAT_PATH]
