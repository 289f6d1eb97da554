"""Model calls that agents make on their own are gathered into one request, and fail as they should."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_server import CHAT_PATH, FakeServer
from openai import AsyncOpenAI
from tokendance_sdk.errors import PromptError
from tokendance_sdk.joining import joining
from tokendance_sdk.marking import mark_shared
from tokendance_sdk.protocol import HEADER_ROUND_ID, ROUNDS_PATH, SEPARATOR
from tokendance_sdk.requests import prepare
from tokendance_sdk.results import RoundResult
from tokendance_sdk.rounds_protocol import RoundRequest
from tokendance_sdk.series import RoundSeries

AGENTS = ["klaus", "maria", "eve"]
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")


@asynccontextmanager
async def client(server: FakeServer, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="k", **{"max_retries": 0, **options}) as own:
        yield joining(own)


async def speak(owner: AsyncOpenAI, agent: str, *heard: str, stream: bool = False, **fields: Any) -> str:
    messages: list[Any] = [{"role": "system", "content": f"{agent} lives."}]
    messages += [{"role": "user", "content": text} for text in heard]
    answer: Any = await owner.chat.completions.create(
        model="m", messages=messages, stream=stream, temperature=0, **fields
    )
    if not stream:
        return str(answer.choices[0].message.content)
    text = ""
    async for chunk in answer:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    return text


async def play(
    series: RoundSeries,
    owner: AsyncOpenAI,
    *heard: str,
    agents: list[str] = AGENTS,
    stream: bool = False,
    **fields: Any,
) -> list[Any]:
    """One round; what each agent got, exceptions included."""
    opened = series.open(agents)

    async def one(agent: str) -> str:
        with opened.seat(agent):
            return await speak(owner, agent, *heard, stream=stream, **fields)

    answers = await asyncio.gather(*map(one, agents), return_exceptions=True)
    series.advance()
    return list(answers)


def rounds(server: FakeServer) -> list[RoundRequest]:
    return [RoundRequest.model_validate(body) for body in server.bodies(ROUNDS_PATH)]


@both
async def test_a_round_is_one_request(rounds_server: FakeServer, stream: bool) -> None:
    series = RoundSeries("sim", fidelity="exact")
    async with client(rounds_server) as owner:
        for _ in range(3):
            assert await play(series, owner, "Hello.", "go", stream=stream) == ["re: go"] * 3
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    for number, request in enumerate(rounds(rounds_server)):
        assert (request.round_id, request.session_id, request.fidelity) == (f"sim:{number}", "sim", "exact")
        assert [agent.agent_id for agent in request.agents] == AGENTS
        assert sorted(request.blocks.values()) == ["Hello.", "go"]
        assert request.defaults["temperature"] == 0


@both
async def test_a_plain_server_gets_the_same_text_without_separators(
    rounds_server: FakeServer, plain_server: FakeServer, stream: bool
) -> None:
    answers = []
    for server in (rounds_server, plain_server):
        async with client(server) as owner:
            series = RoundSeries()
            answers.append([await play(series, owner, f"a{SEPARATOR}b", stream=stream) for _ in range(2)])
    assert answers[0] == answers[1] == [[f"re: a{SEPARATOR}b"] * 3] * 2
    assert plain_server.paths()[2:] == [CHAT_PATH] * 6
    assert [b["messages"][-1]["content"] for b in plain_server.bodies(CHAT_PATH)] == [f"a{SEPARATOR}b"] * 6


@both
async def test_64_agents_and_3_rounds_lose_and_double_nothing(
    rounds_server: FakeServer, stream: bool
) -> None:
    names = [f"agent-{n}" for n in range(64)]
    shared = "What was said. " * 300
    series = RoundSeries("sim")
    async with client(rounds_server) as owner:
        for number in range(3):
            answers = await play(series, owner, shared, f"task {number}", agents=names, stream=stream)
            assert answers == [f"re: task {number}"] * 64
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    for _, _, headers, body in rounds_server.seen:
        assert sum(len(name) + len(value) + 4 for name, value in headers.items()) < 1024
        assert json.dumps(body).count("What was said.") == 300
        assert [agent["agent_id"] for agent in body["agents"]] == names


def test_marking_and_checking_cost_less_than_a_millisecond_per_agent() -> None:
    """The SDK's own work on a third round of 64 agents: everything between the calls and the request."""
    heard = [{"role": "user", "content": f"Said by {n % 64} in round {n // 64}. " * 20} for n in range(128)]
    members = {f"a{n}": [{"role": "system", "content": f"You are {n}."}, *heard] for n in range(64)}

    def once() -> float:
        started = time.process_time()
        marked, blocks = mark_shared(members)
        agents = [{"agent_id": agent, "messages": messages} for agent, messages in marked.items()]
        prepare("m", "sim:2", agents, None, {"blocks": blocks})
        return (time.process_time() - started) / 64 * 1000

    per_agent_ms = min(once() for _ in range(10))
    print(f"SDK overhead: {per_agent_ms:.3f} ms per agent and round")
    assert per_agent_ms < 1


@both
async def test_a_later_call_goes_alone_with_a_tag_and_the_same_boundaries(
    rounds_server: FakeServer, stream: bool
) -> None:
    series = RoundSeries("sim", fidelity="exact")
    async with client(rounds_server) as owner:
        await play(series, owner, "Hello.", stream=stream)
        opened = series.open(["klaus"])
        with opened.seat("klaus"):
            await speak(owner, "klaus", "Hello.", stream=stream)
            await speak(owner, "klaus", "Hello.", "tool says", stream=stream)
    assert rounds_server.paths() == [ROUNDS_PATH, ROUNDS_PATH, CHAT_PATH]
    (body,) = rounds_server.bodies(CHAT_PATH)
    assert body["tokendance"] == {
        "round_id": "sim:1.1",
        "agent_id": "klaus",
        "session_id": "sim",
        "fidelity": "exact",
    }
    assert [m["content"] for m in body["messages"][1:]] == [f"{SEPARATOR}Hello.{SEPARATOR}", "tool says"]


async def test_whoever_leaves_without_a_call_is_not_waited_for(rounds_server: FakeServer) -> None:
    series = RoundSeries(patience=None)
    async with client(rounds_server) as owner:
        opened = series.open(["klaus", "maria"])

        async def one() -> str:
            with opened.seat("klaus"):
                return await speak(owner, "klaus", "go")

        task = asyncio.create_task(one())
        await asyncio.sleep(0.02)
        assert rounds_server.seen == []
        with opened.seat("maria"):
            pass
        assert await asyncio.wait_for(task, 5) == "re: go"


async def test_who_comes_after_patience_ran_out_goes_alone(rounds_server: FakeServer) -> None:
    series = RoundSeries("sim", patience=0.05)
    async with client(rounds_server) as owner:
        opened = series.open(["klaus", "maria"])
        with opened.seat("klaus"):
            assert await speak(owner, "klaus", "go") == "re: go"
        with opened.seat("maria"):
            assert await speak(owner, "maria", "go") == "re: go"
    assert rounds_server.paths() == [ROUNDS_PATH, CHAT_PATH]
    assert rounds_server.bodies(CHAT_PATH)[0]["tokendance"]["round_id"] == "sim:0"


async def test_outside_a_seat_it_is_the_ordinary_client(rounds_server: FakeServer) -> None:
    async with client(rounds_server) as owner:
        await speak(owner, "klaus", "go", extra_headers={HEADER_ROUND_ID: "mine:1"})
    assert rounds_server.paths() == [CHAT_PATH]
    assert "tokendance" not in rounds_server.bodies(CHAT_PATH)[0]
    assert {k.lower(): v for k, v in rounds_server.seen[0][2].items()}[HEADER_ROUND_ID.lower()] == "mine:1"


async def test_on_round_sees_the_result_and_its_exception_reaches_the_agents(
    rounds_server: FakeServer,
) -> None:
    seen: list[RoundResult] = []

    def look(result: RoundResult) -> None:
        seen.append(result)
        if len(seen) == 2:
            raise LookupError("enough")

    series = RoundSeries(on_round=look)
    async with client(rounds_server) as owner:
        assert await play(series, owner, "go") == ["re: go"] * 3
        assert all(isinstance(answer, LookupError) for answer in await play(series, owner, "go"))
    assert seen[0].report.totals.reused_tokens == 21


async def test_a_series_goes_on_from_its_state(rounds_server: FakeServer) -> None:
    series = RoundSeries("sim")
    again = RoundSeries()
    async with client(rounds_server) as owner:
        await play(series, owner, "Hello.", "go")
        again.load(json.loads(json.dumps(series.state())))
        for each in (series, again):
            await play(each, owner, "Hello.", agents=["klaus"])
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert bodies[1] == bodies[2]
    assert list(bodies[1]["blocks"].values()) == ["Hello."]


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 97])
def test_a_bad_session_id_is_refused(wrong: str) -> None:
    with pytest.raises(PromptError, match="session_id"):
        RoundSeries(wrong)


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(PromptError, match="once per round"):
        RoundSeries().open(["ann", "ann"])
