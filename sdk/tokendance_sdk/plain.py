"""A round on a server that knows nothing of rounds: one chat request per member, in parallel."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, cast

from openai import AsyncOpenAI, OpenAI, OpenAIError

from tokendance_sdk.events import RoundAccumulator, RoundEvent
from tokendance_sdk.requests import RoundCall
from tokendance_sdk.results import (
    AgentError,
    AgentResult,
    RawAnswer,
    RoundResult,
    collect,
    parse_completion,
)
from tokendance_sdk.rounds_protocol import RoundAgent
from tokendance_sdk.threads import start
from tokendance_sdk.wire import CHAT, AsyncEventStream, EventStream, error_value, post, post_async

_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def send(client: OpenAI, call: RoundCall, max_parallel: int) -> RoundResult:
    """All members at once, at most `max_parallel` in flight; a member's failure is its result."""
    raw: list[RawAnswer] = []

    def one(place: int, agent: RoundAgent) -> AgentResult:
        try:
            answer = post(client, CHAT, call.member_body(agent), call)
        except OpenAIError as error:
            return AgentResult(agent.agent_id, place, error=error_value(error))
        raw.append(answer)
        return _answered(call, agent, place, answer.body)

    started = time.perf_counter()
    agents = call.request.agents
    futures = start([partial(one, place, agent) for place, agent in enumerate(agents)], max_parallel)
    try:
        results = [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
    return collect(call.request.round_id, results, wall_ms=_since(started), plain=True, raw=raw)


async def send_async(client: AsyncOpenAI, call: RoundCall, max_parallel: int) -> RoundResult:
    """The async twin of `send`; cancelling it cancels every member's request."""
    slots = asyncio.Semaphore(max_parallel)
    raw: list[RawAnswer] = []

    async def one(place: int, agent: RoundAgent) -> AgentResult:
        try:
            async with slots:
                answer = await post_async(client, CHAT, call.member_body(agent), call)
        except OpenAIError as error:
            return AgentResult(agent.agent_id, place, error=error_value(error))
        raw.append(answer)
        return _answered(call, agent, place, answer.body)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(place, agent)) for place, agent in enumerate(call.request.agents)]
    results = [task.result() for task in tasks]
    return collect(call.request.round_id, results, wall_ms=_since(started), plain=True, raw=raw)


def stream(
    client: OpenAI, call: RoundCall, total: RoundAccumulator, max_parallel: int
) -> Iterator[RoundEvent]:
    """All members' streams merged as they come; closing the iterator stops them at their next chunk."""
    arrived: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    stop = threading.Event()

    def one(agent: RoundAgent) -> None:
        try:
            body = {**call.member_body(agent), **_USAGE}
            with client.post(
                CHAT, cast_to=object, body=body, options=call.options, stream=True, stream_cls=EventStream
            ) as events:
                for _, data in cast("Iterator[tuple[str | None, Any]]", events):
                    if stop.is_set():
                        return
                    arrived.put((agent.agent_id, data))
        except Exception as error:
            arrived.put((agent.agent_id, error_value(error)))
        finally:
            arrived.put((agent.agent_id, None))

    agents = call.request.agents
    futures = start([partial(one, agent) for agent in agents], max_parallel)
    try:
        yield from _merged(agents, total, arrived.get)
        yield total.end()
    finally:
        stop.set()
        for future in futures:
            future.cancel()


def _merged(agents: list[RoundAgent], total: RoundAccumulator, get: Any) -> Iterator[RoundEvent]:
    running = len(agents)
    while running:
        agent, data = get()
        if data is None:
            running -= 1
        else:
            yield _event(total, agent, data)


async def stream_async(
    client: AsyncOpenAI, call: RoundCall, total: RoundAccumulator, max_parallel: int
) -> AsyncGenerator[RoundEvent, None]:
    """The async twin of `stream`; closing or cancelling it ends every member's request."""
    arrived: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
    slots = asyncio.Semaphore(max_parallel)

    async def one(agent: RoundAgent) -> None:
        try:
            body = {**call.member_body(agent), **_USAGE}
            async with slots:
                events = await client.post(
                    CHAT,
                    cast_to=object,
                    body=body,
                    options=call.options,
                    stream=True,
                    stream_cls=AsyncEventStream,
                )
                async with events:
                    async for _, data in cast("AsyncIterator[tuple[str | None, Any]]", events):
                        arrived.put_nowait((agent.agent_id, data))
        except Exception as error:
            arrived.put_nowait((agent.agent_id, error_value(error)))
        finally:
            arrived.put_nowait((agent.agent_id, None))

    tasks = [asyncio.create_task(one(agent)) for agent in call.request.agents]
    running = len(tasks)
    try:
        while running:
            agent, data = await arrived.get()
            if data is None:
                running -= 1
            else:
                yield _event(total, agent, data)
        yield total.end()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(total: RoundAccumulator, agent: str, data: object) -> RoundEvent:
    if isinstance(data, AgentError):
        return total.fail(agent, data)
    if isinstance(data, Mapping):
        return total.feed(None, {**data, "agent_id": agent})
    return total.fail(agent, AgentError(f"the server sent {str(data)[:80]!r}, not a chunk", "server_error"))


def _answered(call: RoundCall, agent: RoundAgent, place: int, answer: object) -> AgentResult:
    if not isinstance(answer, Mapping):
        error = AgentError(f"the server sent {str(answer)[:80]!r}, not a chat completion", "server_error")
        return AgentResult(agent.agent_id, place, error=error)
    fidelity = agent.fidelity or call.request.fidelity
    return parse_completion(answer, agent.agent_id, place, call.request.round_id, fidelity)


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
