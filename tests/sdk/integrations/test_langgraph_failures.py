"""What goes wrong in a round ends as the right exception in the right node, in time, and sends nothing twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langgraph")

import openai
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from langgraph_graphs import Talk, broadcaster, debate, side_by_side, thread
from openai import AsyncOpenAI, OpenAI
from scripted_server import Scripted, serving
from tokendance_sdk.errors import PromptError, RoundStreamError, TokenDanceError
from tokendance_sdk.integrations.langgraph import MemberFailedError, RoundBroadcaster

pytestmark = pytest.mark.timeout(60)

RETRY = RetryPolicy(initial_interval=0.01, max_attempts=3, jitter=False)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(Scripted()) as scripted:
        yield scripted


def play(owner: RoundBroadcaster, asynchronous: bool, speakers: int = 8, **options: Any) -> Any:
    """One turn of `speakers`; `stream`: True streams the answers."""
    stream = options.pop("stream", False)
    builder = debate(owner.chat_model, speakers, turns=1, asynchronous=asynchronous, **options)
    app = owner.wrap(builder.compile(checkpointer=InMemorySaver()))
    mode: Any = ["messages", "values"] if stream else "values"
    if not asynchronous:
        return list(app.stream({"said": []}, thread(), stream_mode=mode))[-1]

    async def run() -> Any:
        return [part async for part in app.astream({"said": []}, thread(), stream_mode=mode)][-1]

    return asyncio.run(run())


def said(last: Any) -> list[str]:
    return (last[1] if isinstance(last, tuple) else last)["said"]


def never_twice(server: Scripted) -> None:
    assert set(Counter(server.answered).values()) <= {1}


WAYS = pytest.mark.parametrize(
    ("asynchronous", "stream"), [(False, False), (True, False), (False, True), (True, True)]
)


@WAYS
def test_a_failed_member_is_sent_again_alone_with_the_same_round_id(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.failing = {"speak.5": (500, 1)}
    last = play(broadcaster(server), asynchronous, retry_policy=RETRY, stream=stream)
    assert len(said(last)) == 8
    first, second = server.rounds()
    assert len(first[1]) == 8
    assert second == ("sim:1", ["speak.5"])
    assert first[0] == "sim:1"
    never_twice(server)
    assert len(server.answered) == 8


@WAYS
def test_the_broadcaster_may_retry_by_itself(server: Scripted, asynchronous: bool, stream: bool) -> None:
    server.failing = {"speak.1": (503, 1), "speak.2": (500, 2)}
    last = play(broadcaster(server, retry_failed=2), asynchronous, stream=stream)
    assert len(said(last)) == 8
    again = [agents for _, agents in server.rounds()[1:]]
    assert sorted(again) == [["speak.1"], ["speak.2"], ["speak.2"]]
    never_twice(server)


@WAYS
def test_a_member_that_always_fails_raises_and_the_others_answers_are_kept(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.failing = {"speak.3": (500, 99)}
    owner = broadcaster(server)
    with pytest.raises(MemberFailedError, match=r"speak\.3.*refused with 500") as caught:
        play(owner, asynchronous, retry_policy=RETRY, stream=stream)
    assert caught.value.error.status == 500
    assert caught.value.round_id == "sim:1"
    assert [len(agents) for _, agents in server.rounds()] == [8, 1, 1]
    never_twice(server)


@WAYS
def test_after_a_failure_a_resume_sends_only_what_is_missing(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.failing = {"speak.3": (500, 1)}
    owner = broadcaster(server)
    builder = debate(owner.chat_model, 8, turns=1, asynchronous=asynchronous)
    app = owner.wrap(builder.compile(checkpointer=InMemorySaver()))
    mode: Any = "messages" if stream else "values"

    async def arun() -> None:
        with pytest.raises(MemberFailedError):
            _ = [part async for part in app.astream({"said": []}, thread(), stream_mode=mode)]
        _ = [part async for part in app.astream(None, thread(), stream_mode=mode)]

    if asynchronous:
        asyncio.run(arun())
    else:
        with pytest.raises(MemberFailedError):
            list(app.stream({"said": []}, thread(), stream_mode=mode))
        list(app.stream(None, thread(), stream_mode=mode))
    assert len(app.get_state(thread()).values["said"]) == 8
    assert [(name, len(agents)) for name, agents in server.rounds()] == [("sim:1", 8), ("sim:1", 1)]
    never_twice(server)


@WAYS
def test_a_client_error_is_not_sent_again_by_the_broadcaster(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.failing = {"speak.0": (400, 99)}
    with pytest.raises(MemberFailedError) as caught:
        play(broadcaster(server, retry_failed=3), asynchronous, stream=stream)
    assert not caught.value.error.retryable
    assert len(server.rounds()) == 1


@WAYS
def test_a_429_of_the_whole_round_is_the_clients_own_error(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.refusals = [429]
    with pytest.raises(openai.RateLimitError):
        play(broadcaster(server), asynchronous, stream=stream)
    assert server.answered == []


def test_a_429_is_waited_out_by_the_clients_own_retries(server: Scripted) -> None:
    server.refusals = [429]
    owner = broadcaster(server, client=OpenAI(base_url=server.base_url, api_key="k", max_retries=2))
    assert len(said(play(owner, False))) == 8
    assert [len(agents) for _, agents in server.rounds()] == [8, 8]
    never_twice(server)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("cut", ["garbage", "close"])
def test_a_broken_stream_fails_the_unfinished_and_only_they_are_sent_again(
    server: Scripted, asynchronous: bool, cut: str
) -> None:
    server.cut, server.cut_after = cut, 45  # past the first members' last chunks
    owner = broadcaster(server)
    raised: list[BaseException] = []

    def mend(error: BaseException) -> bool:
        server.cut = None
        raised.append(error)
        return True

    policy = RetryPolicy(initial_interval=0.01, max_attempts=3, retry_on=mend)
    assert len(said(play(owner, asynchronous, retry_policy=policy, stream=True))) == 8
    first, *again = server.rounds()
    whole = {agent for name, agent in server.answered[: len(server.answered) - len(again)]}
    assert 0 < len(whole) < 8
    assert sorted(agents[0] for _, agents in again) == sorted(set(first[1]) - whole)
    assert all(isinstance(error, RoundStreamError | MemberFailedError) for error in raised)
    never_twice(server)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_server_killed_in_the_middle_raises_in_every_node_at_once(
    server: Scripted, asynchronous: bool
) -> None:
    server.cut = "kill"
    started = time.monotonic()
    with pytest.raises(openai.APIConnectionError):
        play(broadcaster(server), asynchronous)
    assert time.monotonic() - started < 10


@WAYS
def test_a_slow_member_is_cut_off_at_the_deadline_and_the_others_go_on(
    server: Scripted, asynchronous: bool, stream: bool
) -> None:
    server.slow = {"speak.7": 20.0}
    started = time.monotonic()
    owner = broadcaster(server, deadline=2.0)
    with pytest.raises(MemberFailedError, match=r"speak\.7.*deadline"):
        play(owner, asynchronous, stream=stream)
    assert time.monotonic() - started < 12
    assert len(server.answered) == 7
    if asynchronous:  # a thread that reads is told at the next piece
        assert server.aborted.wait(5), "the server was told to stop"


async def test_cancelling_the_run_aborts_the_round(server: Scripted) -> None:
    server.slow = {f"speak.{n}": 30.0 for n in range(4)}
    owner = broadcaster(server)
    app = owner.wrap(debate(owner.chat_model, 4, turns=1, asynchronous=True).compile())
    task = asyncio.create_task(app.ainvoke({"said": []}))
    while not server.seen:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.aborted.wait, 5)
    assert server.answered == []


async def test_cancelling_before_the_round_goes_sends_nothing(server: Scripted) -> None:
    owner = broadcaster(server, window=1.0)
    app = owner.wrap(debate(owner.chat_model, 4, turns=1, asynchronous=True).compile())
    task = asyncio.create_task(app.ainvoke({"said": []}))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1.2)
    assert server.seen == []


async def test_one_cancelled_member_leaves_the_others_alone(server: Scripted) -> None:
    server.slow = {"quick": 0.5}
    owner = broadcaster(server)
    llm = owner.chat_model

    async def impatient(state: Talk) -> Talk:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(llm.ainvoke("impatient"), 0.5)
        return {"said": ["gave up"]}

    async def quick(state: Talk) -> Talk:
        return {"said": [(await llm.ainvoke("quick")).content]}

    app = owner.wrap(side_by_side({"impatient": impatient, "quick": quick}).compile())
    assert sorted((await app.ainvoke({"said": []}))["said"]) == ["gave up", "re: quick"]
    assert not server.aborted.is_set()


def test_a_node_that_raises_in_its_own_code_fails_the_step_but_not_the_round(server: Scripted) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model
    tries: list[int] = []

    def clumsy(state: Talk) -> Talk:
        text = llm.invoke("clumsy").content
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("my own database")
        return {"said": [text]}

    nodes = {"clumsy": clumsy, "fine": lambda state: {"said": [llm.invoke("fine").content]}}
    app = owner.wrap(side_by_side(nodes, retry_policy=RETRY).compile(checkpointer=InMemorySaver()))
    assert sorted(app.invoke({"said": []}, thread())["said"]) == ["re: clumsy", "re: fine"]
    assert server.rounds() == [("sim:1", ["clumsy", "fine"]), ("sim:1", ["clumsy"])]


def test_a_callback_that_raises_reaches_the_nodes_and_does_not_hang(server: Scripted) -> None:
    def bad(result: object) -> None:
        raise KeyError("my own report")

    with pytest.raises(KeyError, match="my own report"):
        play(broadcaster(server, on_round=bad), False)


def test_mistakes_are_named_before_anything_is_sent(server: Scripted) -> None:
    owner = broadcaster(server)
    with pytest.raises(PromptError, match="got 'timeout' for a single call; allowed: set it for"):
        owner.chat_model.invoke("x", timeout=3)
    with pytest.raises(PromptError, match="sets 'round_size'"):
        owner.chat_model.invoke("x", round_size=3)
    with pytest.raises(PromptError, match="got a StateGraph; allowed: a compiled graph"):
        owner.wrap(StateGraph(Talk))  # type: ignore[type-var]
    compiled = StateGraph(Talk).add_node("a", lambda state: {}).add_edge(START, "a").compile()
    with pytest.raises(PromptError, match="got members=0; allowed: 1 to 4096"):
        owner.wrap(compiled, members=0)
    with pytest.raises(PromptError, match="got a RoundChatModel; allowed: ChatOpenAI"):
        RoundBroadcaster.from_model(owner.chat_model)
    only_sync = RoundBroadcaster(client=OpenAI(base_url=server.base_url, api_key="k"), model="m")
    with pytest.raises(TokenDanceError, match="sync client only"):
        asyncio.run(only_sync.chat_model.ainvoke("x"))
    only_async = RoundBroadcaster(client=AsyncOpenAI(base_url=server.base_url, api_key="k"), model="m")
    with pytest.raises(TokenDanceError, match="async client only"):
        only_async.chat_model.invoke("x")
    assert server.seen == []
