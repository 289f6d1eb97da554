"""Sending gathered calls from tasks: the async twin of `rounds`; whoever waits may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any

from tokendance_sdk.async_client import AsyncTokenDance
from tokendance_sdk.errors import MemberFailedError
from tokendance_sdk.events import RoundEvent
from tokendance_sdk.integrations.langgraph.gather import (
    Call,
    Gathering,
    Outcome,
    abandoned,
    assemble,
)
from tokendance_sdk.integrations.langgraph.rounds import GRACE_S, Bad, Sending
from tokendance_sdk.results import AgentError, AgentResult, past_deadline

CANCELLED = AgentError("the round was cancelled", "cancelled", "cancelled")


class AsyncRounds:
    """Gathers calls of one event loop and sends them through an `AsyncTokenDance` client."""

    def __init__(self, dance: AsyncTokenDance, sending: Sending) -> None:
        self._dance = dance
        self._sending = sending
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself holds tasks weakly

    async def outcomes(self, call: Call) -> AsyncGenerator[AgentResult | RoundEvent, None]:
        """As `Rounds.outcomes`. When every waiting call of a round is cancelled, the server is told to stop."""
        for left in reversed(range(self._sending.retries + 1)):
            patience = self._sending.patience(call)
            ends = None if patience is None else asyncio.get_running_loop().time() + patience
            box: asyncio.Queue[Outcome] = asyncio.Queue()
            call.give = box.put_nowait
            self._submit(call, alone=left < self._sending.retries)
            try:
                while not call.ended:
                    yield call.read(await self._next(call, box, ends))
                return
            except MemberFailedError as error:
                if not left or not call.may_retry(error):
                    raise
            finally:
                if not call.ended:
                    call.left = True
                    call.leave()
            call = call.again()

    async def _next(self, call: Call, box: asyncio.Queue[Outcome], ends: float | None) -> Outcome:
        limit = asyncio.timeout_at(ends)
        try:
            async with limit:
                return await box.get()
        except TimeoutError:
            if not limit.expired():
                raise
            raise call.failed(past_deadline()) from None

    def _submit(self, call: Call, alone: bool) -> None:
        scope = id(asyncio.get_running_loop())
        how, gathering = ("late", None) if alone else self._sending.book.enter(call, scope)
        if how == "opened" and gathering is not None:
            self._start(self._gather(gathering))
        elif how == "late":
            self._start(self._send([call]))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="tokendance-round")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _gather(self, gathering: Gathering) -> None:
        while (rest := gathering.rest) > 0:
            await asyncio.sleep(rest)
        await self._send(self._sending.book.close(gathering))

    async def _send(self, calls: Sequence[Call]) -> None:
        if not calls:
            return
        this = asyncio.current_task()

        def check() -> None:
            if this is not None and abandoned(calls):
                this.cancel()

        for call in calls:
            call.leave = check
        try:
            arguments = {**self._sending.fields, **assemble(calls)}
            if any(call.streamed for call in calls):
                await self._stream(calls, arguments)
            else:
                result = await self._dance.rounds.create(**arguments, deadline=self._sending.deadline)
                await self._tell(self._sending.finished(result, calls), calls)
        except asyncio.CancelledError:
            for call in calls:
                call.give(call.failed(CANCELLED))
            raise
        except BaseException as error:
            for call in calls:
                call.give(error)

    async def _stream(self, calls: Sequence[Call], arguments: Mapping[str, Any]) -> None:
        members = {call.agent: call for call in calls}
        async with self._dance.rounds.stream(**arguments) as stream:
            try:
                async for event in stream:
                    if event.kind == "chunk" and event.agent_id and members[event.agent_id].streamed:
                        members[event.agent_id].give(event)
                result = await stream.result()
            except Exception as error:
                await self._tell(self._sending.broken(stream.so_far(), calls, error), calls)
                return
        await self._tell(self._sending.finished(result, calls), calls)

    async def _tell(self, bad: Bad, calls: Sequence[Call]) -> None:
        if 0 < len(bad) < len(calls):
            await asyncio.sleep(GRACE_S)
        for call, outcome in bad:
            call.give(outcome)
