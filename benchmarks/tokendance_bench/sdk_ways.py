"""Ways to play the same rounds from a client: through the SDK, with ordinary requests, with a model that is not there.

Everybody hears everybody in every round. Each `play` does all rounds; a way whose package is missing is left out.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletion
from tokendance_sdk import Block, RoundPrompt, TokenDance
from tokendance_sdk.gathering import current_seat
from tokendance_sdk.joining import joining
from tokendance_sdk.series import RoundSeries

from tokendance_bench.instant_server import USAGE, answer, choices
from tokendance_bench.sdk_setting import TASK, Setting

Play = Callable[[], Any]
Kind = Callable[[Any], Any]
"""An `AsyncOpenAI` -> the client that the program is given."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        ours: the program with its calls sent in rounds.
        instant: the same program, its model calls answered on the spot: what the framework itself costs.
        ordinary: the same program, one chat request a call.
        calls: where the framework costs so much that a difference would drown in its noise: the program, which notes
            its model calls; they are then played again without the framework.
    """

    ours: Play
    instant: Play | None = None
    ordinary: Play | None = None
    calls: Callable[[Recorder], Any] | None = None


def ways(at: Setting) -> dict[str, Way]:
    """Every way that the packages here allow."""
    found = {
        "rounds.create": Way(lambda: _create(at)),
        "session": Way(lambda: _session(at)),
        "joining(AsyncOpenAI)": _of_clients(lambda kind: _joining(at, kind)),
    }
    if _have("langgraph") and _have("langchain_openai"):
        from tokendance_bench.sdk_langgraph import play_graph, play_node

        found["LangGraph node"] = Way(lambda: play_node(at))
        found["LangGraph wrap(graph)"] = Way(
            *(lambda kind=kind: play_graph(at, kind) for kind in ("ours", "instant", "ordinary"))
        )
    if _have("autogen_agentchat"):
        found["AutoGen team"] = _of_clients(lambda kind: _team(at, kind))
    if _have("ag2"):
        found["AG2 broadcast"] = _of_clients(lambda kind: _broadcast(at, kind))
    return found


def _of_clients(program: Callable[[Kind], Coroutine[Any, Any, None]]) -> Way:
    ours, there, ordinary = (
        lambda kind=kind: asyncio.run(program(kind)) for kind in (joining, instant, _same)
    )
    return Way(ours, there, ordinary, lambda recorder: asyncio.run(program(recorder.instant)))


def _have(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _same(client: Any) -> Any:
    return client


def instant(client: AsyncOpenAI) -> AsyncOpenAI:
    """A copy whose chat completions are answered on the spot."""
    return Recorder().instant(client)


class Recorder:
    """Notes the model calls of each round, answering them on the spot; and plays them again.

    Attributes:
        rounds: round id -> (agent, arguments of the client's `post`) of each call.
    """

    def __init__(self) -> None:
        self.rounds: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def instant(self, client: AsyncOpenAI) -> AsyncOpenAI:
        """A copy of `client` whose calls are noted."""
        copy: Any = client.copy()
        turns = itertools.count()

        async def post(path: str, **arguments: Any) -> ChatCompletion:
            seat = current_seat()
            if seat is not None:
                given = {"path": path, **arguments}
                self.rounds.setdefault(seat.round.round_id, []).append((seat.agent, given))
            done = {"id": "c", "model": "m", "object": "chat.completion", "created": 0, "usage": USAGE}
            return ChatCompletion.construct(None, **done, choices=choices("agent", next(turns)))

        copy.post = post
        made: AsyncOpenAI = copy
        return made

    async def play(self, at: Setting, kind: Kind) -> None:
        """The noted calls once more, through a client of this kind and nothing else."""
        async with at.twin() as own:
            client, series = kind(own), RoundSeries("s", patience=None)

            async def call(seat: Any, arguments: dict[str, Any]) -> None:
                with seat:
                    await client.post(**arguments)

            for calls in self.rounds.values():
                opened = series.open([who for who, _ in calls])
                await asyncio.gather(*(call(opened.seat(who), arguments) for who, arguments in calls))
                series.advance()


def bare(at: Setting) -> Play:
    """The rounds of `rounds.create` as requests that are there already, sent by the OpenAI client alone."""
    from tokendance_sdk.requests import prepare

    said: Sequence[Block] = ()
    bodies = []
    for number in range(at.rounds):
        prompts = [RoundPrompt.assemble(who, f"You are {who}.", said, task=TASK) for who in at.names]
        bodies.append(prepare("m", f"r:{number}", prompts, None, {}).body)
        said = [Block(answer(who, number), who) for who in at.names]

    def play() -> None:
        with at.sync() as client:
            for body in bodies:
                client.post("/rounds", cast_to=object, body=body)

    return play


def _create(at: Setting) -> None:
    with at.sync() as client:
        dance = TokenDance(client)
        said: tuple[Block, ...] = ()
        for number in range(at.rounds):
            prompts = [RoundPrompt.assemble(who, f"You are {who}.", said, task=TASK) for who in at.names]
            said = dance.rounds.create(model="m", round_id=f"r:{number}", agents=prompts).blocks


def _session(at: Setting) -> None:
    with at.sync() as client:
        people = {who: f"You are {who}." for who in at.names}
        session = TokenDance(client).session("s", model="m", agents=people)
        for _ in range(at.rounds):
            session.round(TASK)


async def _joining(at: Setting, kind: Kind) -> None:
    async with at.twin() as owner:
        client, series, heard = kind(owner), RoundSeries("s"), [TASK]

        async def speak(who: str, seat: Any) -> str:
            with seat:
                messages: Any = [{"role": "system", "content": f"You are {who}."}]
                messages += [{"role": "user", "content": text} for text in heard]
                said = await client.chat.completions.create(model="m", messages=messages)
            return said.choices[0].message.content or ""

        for _ in range(at.rounds):
            opened = series.open(at.names)
            heard = await asyncio.gather(*(speak(who, opened.seat(who)) for who in at.names))
            series.advance()


async def _team(at: Setting, kind: Kind) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from tokendance_sdk.integrations.autogen import BroadcastGroupChat
    from tokendance_sdk.integrations.autogen.client import UNKNOWN_MODEL

    client: Any = OpenAIChatCompletionClient(
        model="m", base_url=at.base_url, api_key="k", model_info=UNKNOWN_MODEL
    )
    client._client = kind(client._client)
    people: list[Any] = [
        AssistantAgent(who, model_client=client, system_message=f"You are {who}.") for who in at.names
    ]
    await BroadcastGroupChat(people, max_turns=at.rounds).run(task=TASK)
    await client.close()


async def _broadcast(at: Setting, kind: Kind) -> None:
    from ag2 import Agent
    from ag2.config import OpenAIConfig
    from tokendance_sdk.integrations.ag2 import Broadcast, TokenDanceConfig

    class Config(OpenAIConfig):  # type: ignore[misc,unused-ignore]
        def create(self) -> Any:
            client: Any = super().create()
            client._client = kind(client._client)
            return client

    # The same connections for all: AG2 makes a client for every turn.
    connections: Any = DefaultAsyncHttpxClient()
    config: Any = (TokenDanceConfig if kind is joining else Config)(
        "m", base_url=at.base_url, api_key="k", http_client=connections
    )
    people = [Agent(who, prompt=f"You are {who}.", config=config) for who in at.names]
    await Broadcast(people).run(TASK, rounds=at.rounds)
    await connections.aclose()
