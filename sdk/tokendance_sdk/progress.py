"""How far a round is: a callback, called as its members' answers end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tokendance_sdk.events import RoundEvent
from tokendance_sdk.requests import RoundCall
from tokendance_sdk.results import RoundResult


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A round so far.

    Attributes:
        agents: members of the round.
        done: members whose answer has ended, failures included.
        failed: members that failed.
        agent_id: whose answer has just ended; None at the start and at the end.
        finished: True once, at the end: nothing follows.
        elapsed_ms: since the round was sent.
    """

    round_id: str
    agents: int
    done: int
    failed: int
    agent_id: str | None
    finished: bool
    elapsed_ms: float


Progress = Callable[[RoundProgress], None]
"""Called in the thread (or loop) that reads the answers, so it must not block; what it raises ends the round."""


class ProgressMeter:
    """Turns a round's events into calls: one when it is sent, one for each member, one when it is over."""

    def __init__(self, progress: Progress, round_id: str, agents: int) -> None:
        self._progress = progress
        self._round_id = round_id
        self._agents = agents
        self._ended: dict[str, bool] = {}
        self._started = time.perf_counter()

    @classmethod
    def of(cls, progress: Progress | None, call: RoundCall) -> ProgressMeter | None:
        """For this round; None where nobody asks."""
        return None if progress is None else cls(progress, call.request.round_id, len(call.request.agents))

    def start(self) -> None:
        """The round is about to be sent."""
        self._report(None)

    def feed(self, event: RoundEvent) -> None:
        """An event of the round's stream."""
        if event.ends_member and event.agent_id is not None and event.agent_id not in self._ended:
            self._ended[event.agent_id] = event.kind != "error"
            self._report(event.agent_id)

    def finish(self, result: RoundResult) -> None:
        """All of it is there. Members are counted as the result has them (a retry may have helped)."""
        self._ended = {member.agent_id: member.ok for member in result}
        self._report(None, finished=True)

    def _report(self, agent: str | None, *, finished: bool = False) -> None:
        failed = sum(not ok for ok in self._ended.values())
        elapsed_ms = (time.perf_counter() - self._started) * 1000
        self._progress(
            RoundProgress(self._round_id, self._agents, len(self._ended), failed, agent, finished, elapsed_ms)
        )
