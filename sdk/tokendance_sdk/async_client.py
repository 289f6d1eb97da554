"""`AsyncTokenDance`: send whole rounds through an `AsyncOpenAI` client you already have."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, cast

from openai import APIStatusError, AsyncOpenAI, OpenAIError

from tokendance_sdk import plain
from tokendance_sdk.errors import RoundStreamError
from tokendance_sdk.events import RoundAccumulator, RoundEvent
from tokendance_sdk.layout import Layout
from tokendance_sdk.progress import Progress, ProgressMeter
from tokendance_sdk.prompt import DEFAULT_LABEL, History, Label
from tokendance_sdk.requests import Agent, RoundCall, prepare
from tokendance_sdk.results import RawAnswer, RoundResult, parse_response, past_deadline, replaced
from tokendance_sdk.session import AsyncSession, Context, open_state
from tokendance_sdk.streams import AsyncRoundStream
from tokendance_sdk.tracing import round_span, traced_async
from tokendance_sdk.wire import (
    ROUNDS,
    AsyncEventStream,
    Mode,
    ServerKind,
    broken_off,
    failed_round,
    is_no_such_route,
    post_async,
    status_url,
)


class AsyncTokenDance:
    """Rounds on top of an `AsyncOpenAI` client, with its address, key, retries, proxies and timeouts.

    As `TokenDance`, with the same arguments.
    """

    def __init__(self, client: AsyncOpenAI, *, mode: Mode = "auto", max_parallel: int = 64) -> None:
        self.client = client
        self.kind = ServerKind(mode)
        self.max_parallel = max_parallel
        self.rounds = AsyncRounds(self)

    def session(
        self,
        session_id: str,
        *,
        model: str,
        agents: Mapping[str, History],
        context: Context = "window",
        layout: Layout | None = None,
        label: Label | None = DEFAULT_LABEL,
        **defaults: Any,
    ) -> AsyncSession:
        """Rounds that follow one another, ids `session_id:0`, `session_id:1`, ...

        Args:
            agents: agent -> its private history (text, or messages), in the order of the round.
            context: what stays of earlier rounds: `window` the agent's own outputs, `transcript` everybody's.
            defaults: fields for every round, as for `rounds.create`.
        """
        state = open_state(session_id, agents, context, layout, label)
        return AsyncSession(self, state, {"model": model, **defaults})

    async def status(self) -> dict[str, Any] | None:
        """What the server says about its TokenDance engine; None from a server that has none."""
        try:
            answer = await self.client.get(status_url(self.client.base_url), cast_to=object)
        except APIStatusError as error:
            if is_no_such_route(error):
                return None
            raise
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None

    async def is_plain(self, error: APIStatusError) -> bool:
        """Whether a refused round means that the server knows no rounds; asks it where that is still open."""
        if self.kind.plain is None and is_no_such_route(error) and await self.status() is None:
            self.kind.found_plain(self.client.base_url)
        return self.kind.plain is True


class AsyncRounds:
    """`AsyncTokenDance(...).rounds`."""

    def __init__(self, owner: AsyncTokenDance) -> None:
        self._owner = owner

    async def create(
        self,
        *,
        model: str,
        round_id: str,
        agents: Sequence[Agent],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        raise_on_error: bool = False,
        retry_failed: int = 0,
        deadline: float | None = None,
        progress: Progress | None = None,
        **fields: Any,
    ) -> RoundResult:
        """The async twin of `Rounds.create`; cancelling it aborts every member on the server."""
        call = prepare(model, round_id, agents, overrides, fields)
        ends = None if deadline is None else time.monotonic() + deadline
        meter = ProgressMeter.of(progress, call)
        with round_span(call) as note:
            if meter is not None:
                meter.start()
            result = await self._send(call, ends, meter)
            for _ in range(retry_failed):
                again = result.retryable
                if not again or (ends is not None and time.monotonic() >= ends):
                    break
                with contextlib.suppress(OpenAIError, RoundStreamError):  # what is answered is not given up
                    result = replaced(result, await self._send(call.only(again), ends))
            note(result)
        if meter is not None:
            meter.finish(result)
        return result.raise_for_errors() if raise_on_error else result

    def stream(
        self,
        *,
        model: str,
        round_id: str,
        agents: Sequence[Agent],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> AsyncRoundStream:
        """The async twin of `Rounds.stream` (not a coroutine: iterate over what it returns)."""
        return self._open(prepare(model, round_id, agents, overrides, fields).streaming())

    def _open(self, call: RoundCall) -> AsyncRoundStream:
        total = RoundAccumulator(call.request)
        return AsyncRoundStream(traced_async(call, self._events(call, total), total), total)

    async def _send(
        self, call: RoundCall, ends: float | None, meter: ProgressMeter | None = None
    ) -> RoundResult:
        if ends is not None or meter is not None:
            return await self._send_until(call.streaming(), ends, meter)
        owner = self._owner
        started = time.perf_counter()
        if not owner.kind.plain:
            try:
                answer: RawAnswer | None = await post_async(owner.client, ROUNDS, call.body, call)
            except APIStatusError as error:
                answer = failed_round(error)
                if answer is None and not await owner.is_plain(error):
                    raise
            if answer is not None:
                owner.kind.found_rounds()
                wall_ms = (time.perf_counter() - started) * 1000
                return parse_response(answer, call.request.round_id, wall_ms=wall_ms)
        return await plain.send_async(owner.client, call, owner.max_parallel)

    async def _send_until(
        self, call: RoundCall, ends: float | None, meter: ProgressMeter | None
    ) -> RoundResult:
        total = RoundAccumulator(call.request)
        try:
            wait = None if ends is None else max(0.0, ends - time.monotonic())
            async with asyncio.timeout(wait) as limit:
                async with contextlib.aclosing(self._events(call, total)) as events:
                    async for event in events:
                        if meter is not None:
                            meter.feed(event)
        except TimeoutError:
            if not limit.expired():
                raise
        return total.result(past_deadline())

    async def _events(self, call: RoundCall, total: RoundAccumulator) -> AsyncGenerator[RoundEvent, None]:
        owner = self._owner
        if not owner.kind.plain:
            try:
                events = await owner.client.post(
                    ROUNDS,
                    cast_to=object,
                    body=call.body,
                    options=call.options,
                    stream=True,
                    stream_cls=AsyncEventStream,
                )
            except APIStatusError as error:
                answer = failed_round(error)
                if answer is not None:
                    yield total.feed("report", answer.body)
                    return
                if not await owner.is_plain(error):
                    raise
            else:
                owner.kind.found_rounds()
                async with events:
                    async for event in self._read(events, total, call.request.round_id):
                        yield event
                return
        total.plain = True
        members = plain.stream_async(owner.client, call, total, owner.max_parallel)
        async with contextlib.aclosing(members):
            async for event in members:
                yield event

    async def _read(
        self, events: AsyncEventStream, total: RoundAccumulator, round_id: str
    ) -> AsyncGenerator[RoundEvent, None]:
        pairs = aiter(cast("Any", events))
        while True:
            try:
                name, data = await anext(pairs)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise broken_off(round_id, error) from error
            yield total.feed(name, data)
