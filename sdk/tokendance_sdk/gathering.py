"""An open round: model calls that several agents make on their own are gathered and sent as one request.

Frameworks call a model client from inside each agent. Whoever runs the agents opens a round, gives every agent its
seat, and lets them run; `joining.joining(client)` makes a client whose calls take the seat they are made from.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI

from tokendance_sdk.errors import MemberFailedError, PromptError
from tokendance_sdk.results import AgentResult

if TYPE_CHECKING:
    from tokendance_sdk.series import RoundSeries

Piece = dict[str, Any] | Exception | None
"""A chunk of a streamed answer, why there will be no more, or its end."""


@dataclass(frozen=True, slots=True)
class Seat:
    """An agent's place in an open round."""

    round: OpenRound
    agent: str


_seat: contextvars.ContextVar[Seat | None] = contextvars.ContextVar("tokendance_seat", default=None)


def current_seat() -> Seat | None:
    """The seat that the running code was given, if any."""
    return _seat.get()


class MemberCall:
    """One member's model call, until it is answered.

    Attributes:
        body: the chat request as the framework made it: raw messages, no boundaries.
        options: request options of the OpenAI client.
        pieces: chunks as they come, for a caller that wants a stream; None for one that does not.
    """

    def __init__(
        self, seat: Seat, client: AsyncOpenAI, body: dict[str, Any], options: dict[str, Any], stream: bool
    ) -> None:
        self.agent = seat.agent
        self.client = client
        self.body = body
        self.options = options
        self.pieces: asyncio.Queue[Piece] | None = asyncio.Queue() if stream else None
        self.started = False
        self._ended = False
        self._round = seat.round
        self._answer: asyncio.Future[AgentResult] = asyncio.get_running_loop().create_future()

    @property
    def round_id(self) -> str:
        """The round it is part of."""
        return self._round.round_id

    @property
    def over(self) -> bool:
        """Answered, failed or given up."""
        return self._answer.done()

    def feed(self, chunk: dict[str, Any]) -> None:
        """Hand on a chunk, where the caller streams."""
        if self.pieces is not None and not self.over:
            self.started = True
            self.pieces.put_nowait(chunk)

    def end_stream(self) -> None:
        """All its chunks were fed; a caller that streams need not wait for the others."""
        self._end(None)

    def finish(self, result: AgentResult) -> None:
        """Answer the call: its error, if that is what it has, is raised as `MemberFailedError`."""
        if result.error is not None:
            self.fail(MemberFailedError(self.agent, self.round_id, result.error))
        elif not self.over:
            if self.pieces is not None and not self.started:
                for chunk in _chunks(result):
                    self.pieces.put_nowait(chunk)
            self._answer.set_result(result)
            self._end(None)

    def fail(self, error: Exception) -> None:
        """End the call with an exception; no-op when it is over."""
        if not self.over:
            self._answer.set_exception(error)
            self._answer.exception()  # a streaming caller gets it from `pieces` and never asks here
            self._end(error)

    def give_up(self) -> None:
        """The caller does not want the answer any more; the request ends when no caller does."""
        self._answer.cancel()
        self._round.abandon(self)

    async def result(self) -> AgentResult:
        """The answer of a call that is not streamed; being cancelled gives the call up.

        Raises:
            MemberFailedError: the member failed.
            openai.OpenAIError, TokenDanceError: the round as a whole failed.
        """
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.give_up()
            raise

    def _end(self, last: Exception | None) -> None:
        if self.pieces is not None and not self._ended:
            self._ended = True
            self.pieces.put_nowait(last)


class OpenRound:
    """Gathers the first model call of each of its agents, and sends them together.

    It is sent when every agent has called or left, or when nobody new has called for `patience` seconds. One event
    loop's: not for threads.

    Attributes:
        round_id: the round's id on the wire.
    """

    def __init__(
        self, series: RoundSeries, round_id: str, agents: Sequence[str], patience: float | None
    ) -> None:
        self.series = series
        self.round_id = round_id
        self.calls: list[MemberCall] = []
        self._places = {agent: place for place, agent in enumerate(agents)}
        self._awaited = set(agents)
        if len(self._awaited) != len(agents):
            raise PromptError(f"got agents {list(agents)!r}; allowed: each agent once per round")
        self._made: dict[str, int] = {}
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()
        self._context.run(_seat.set, None)

    @contextmanager
    def seat(self, agent: str) -> Iterator[None]:
        """Calls made inside are this agent's; at the end it has left, so that nobody waits for it any longer."""
        token = _seat.set(Seat(self, agent))
        try:
            yield
        finally:
            _seat.reset(token)
            self.leave(agent)

    def leave(self, agent: str) -> None:
        """The agent makes no (further) call in this round."""
        self._awaited.discard(agent)
        self._send_if_complete()

    def takes(self, agent: str) -> bool:
        """Whether the agent's next call can still be part of the round's one request."""
        return not self._closed and agent in self._awaited

    def turn(self, agent: str) -> int:
        """Number of the agent's next call in this round, from 0; counts it."""
        number = self._made.get(agent, 0)
        self._made[agent] = number + 1
        return number

    def join(self, call: MemberCall) -> None:
        """Take the call in. Only where `takes(call.agent)`."""
        self.turn(call.agent)
        self.calls.append(call)
        self._awaited.discard(call.agent)
        if self._timer is not None:
            self._timer.cancel()
        if self._patience is not None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._send)
        self._send_if_complete()

    def abandon(self, call: MemberCall) -> None:
        """A call was given up: it is not sent, or its answer is dropped."""
        if not self._closed:
            self.calls.remove(call)
            self._send_if_complete()
        elif self._task is not None and all(call.over for call in self.calls):
            self._task.cancel()

    def _send_if_complete(self) -> None:
        if not self._awaited:
            self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._closed or not self.calls:
            return
        self._closed = True
        self.calls.sort(key=lambda call: self._places[call.agent])
        self._task = asyncio.get_running_loop().create_task(self.series.send(self), context=self._context)
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())


def _chunks(result: AgentResult) -> Iterator[dict[str, Any]]:
    """A whole answer as the stream that its caller asked for."""
    for choice in result.choices:
        delta = dict(choice.get("message") or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        rest = {name: value for name, value in choice.items() if name != "message"}
        yield {"choices": [{**rest, "delta": delta}]}
    yield {"choices": [], "usage": result.usage}
