"""Calls of one superstep become one round: who belongs together, and when it goes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokendance_sdk.errors import MemberFailedError
from tokendance_sdk.events import RoundEvent
from tokendance_sdk.integrations.langgraph.places import CallPlace
from tokendance_sdk.results import AgentError, AgentResult

WINDOW_S = 0.05
"""A round goes when no call came for so long."""

PATIENCE = 20
"""And after so many windows in any case."""


def _nothing(*_: object) -> None:
    pass


Outcome = AgentResult | RoundEvent | BaseException
"""What a waiting call is given: its whole answer, a piece of it, or what to raise."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of the chat model, on its way.

    Attributes:
        member: messages and fields of its entry in the round, without `agent_id`.
        give: hands an outcome to whoever waits for it; never blocks.
        leave: called when nobody waits any more, before all of the answer is there.
        agent: its id in the round, once the round is closed.
        begun: a piece of the answer was handed on, so it cannot be sent again unseen.
        ended: all of the answer, or its failure, was handed over.
        left: nobody waits any more (cancelled, past its deadline).
    """

    place: CallPlace
    model: str
    member: dict[str, Any]
    blocks: dict[str, str]
    streamed: bool
    give: Callable[[Outcome], None] = _nothing
    leave: Callable[[], None] = _nothing
    agent: str = ""
    begun: bool = False
    ended: bool = False
    left: bool = False

    def again(self) -> Call:
        """The same call, not sent yet."""
        return Call(self.place, self.model, self.member, self.blocks, self.streamed)

    def read(self, outcome: Outcome) -> AgentResult | RoundEvent:
        """What the waiting call goes on with; `ended` tells whether more will come.

        Raises:
            MemberFailedError: this member failed.
            Exception: the round as a whole failed, with the client's or the SDK's error.
        """
        if isinstance(outcome, BaseException):
            self.ended = True
            raise outcome
        if isinstance(outcome, RoundEvent):
            self.begun = True
            self.ended = is_end(outcome)
            return outcome
        self.ended = True
        if outcome.error is not None:
            raise self.failed(outcome.error)
        return outcome

    def failed(self, error: AgentError) -> MemberFailedError:
        """The exception for this call."""
        return MemberFailedError(self.agent or self.place.agent, self.place.round_id, error)

    def may_retry(self, error: MemberFailedError) -> bool:
        """Whether sending it again could help, and nobody would see a piece of an answer twice."""
        return error.error.retryable and not self.begun


@dataclass(eq=False, slots=True)
class Gathering:
    """The calls of one superstep, until they are sent.

    Attributes:
        sent_at: Unix seconds; None while it gathers.
    """

    window: float
    opened: float = field(default_factory=time.monotonic)
    latest: float = field(default_factory=time.monotonic)
    calls: list[Call] = field(default_factory=list)
    sent_at: float | None = None

    @property
    def rest(self) -> float:
        """Seconds until it goes, if nobody else comes."""
        ends = min(self.latest + self.window, self.opened + PATIENCE * self.window)
        return ends - time.monotonic()


class Book:
    """Which superstep gathers, and which was sent already. Bounded; threads may share it."""

    def __init__(self, window: float = WINDOW_S, most: int = 1024) -> None:
        self.window = window
        self.most = most
        self._gatherings: OrderedDict[tuple[object, ...], Gathering] = OrderedDict()
        self._lock = threading.Lock()

    def enter(
        self, call: Call, scope: object = None
    ) -> tuple[Literal["opened", "joined", "late"], Gathering]:
        """Put `call` into its superstep's gathering; `late` if that was sent while the call's node ran already.

        Late are the retries of failed members and the later calls of a node, of a tool loop say: they go alone. So do
        calls outside a graph. A node that began after the round was sent (a resume, a replay, a queue of tasks) opens
        the next gathering.

        Args:
            scope: calls of different scopes never meet (event loops).
        """
        key = (scope, call.model, *call.place.superstep)
        with self._lock:
            gathering = self._gatherings.get(key)
            if not call.place.superstep:
                return "late", Gathering(self.window)
            if gathering is not None and gathering.sent_at is None:
                gathering.calls.append(call)
                gathering.latest = time.monotonic()
                return "joined", gathering
            if gathering is not None and gathering.sent_at is not None:
                started = call.place.started
                if started is None or started <= gathering.sent_at:
                    return "late", gathering
            gathering = self._gatherings[key] = Gathering(self.window, calls=[call])
            self._gatherings.move_to_end(key)
            while len(self._gatherings) > self.most:
                self._gatherings.popitem(last=False)
            return "opened", gathering

    def close(self, gathering: Gathering) -> list[Call]:
        """Nobody joins any more; the calls that still wait, in an order that does not depend on arrival."""
        with self._lock:
            gathering.sent_at = time.time()
            calls, gathering.calls = gathering.calls, []
        return sorted((call for call in calls if not call.left), key=lambda call: call.place.order)


def assemble(calls: Sequence[Call]) -> dict[str, Any]:
    """Arguments of `rounds.create` for these calls; sets each call's `agent`."""
    blocks: dict[str, str] = {}
    agents = []
    taken: set[str] = set()
    for call in calls:
        wanted = name = str(call.member.get("agent_id") or call.place.agent)
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted}.{number}"
        taken.add(name)
        call.agent = name
        blocks.update(call.blocks)
        agents.append({**call.member, "agent_id": name})
    first = calls[0]
    return {
        "model": first.model,
        "round_id": first.place.round_id,
        "session_id": first.place.session_id,
        "blocks": blocks,
        "agents": agents,
    }


def abandoned(calls: Sequence[Call]) -> bool:
    """Whether nobody waits for the rest of the round, though it has not all been handed over."""
    return any(call.left for call in calls) and all(call.left or call.ended for call in calls)


def is_end(event: RoundEvent) -> bool:
    """Whether nothing follows in this member's stream: the chunk that carries its usage alone."""
    return bool(event.data.get("usage")) and not event.data.get("choices")
