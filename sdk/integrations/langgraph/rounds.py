"""Sending gathered calls from threads: a round for those that came together, a request for each that came late."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokendance_sdk.client import TokenDance
from tokendance_sdk.errors import MemberFailedError
from tokendance_sdk.events import INCOMPLETE, RoundEvent
from tokendance_sdk.integrations.langgraph.gather import (
    PATIENCE,
    Book,
    Call,
    Gathering,
    Outcome,
    abandoned,
    assemble,
)
from tokendance_sdk.results import AgentResult, RoundResult, past_deadline

GRACE_S = 0.2
"""Seconds that nodes with an answer have to return it before another node of their round raises."""

OnRound = Callable[[RoundResult], None]

Bad = list[tuple[Call, Outcome]]
"""Calls without an answer, and what each is given in its place."""


@dataclass(frozen=True, slots=True)
class Sending:
    """How rounds are sent.

    Attributes:
        fields: for every round, as for `rounds.create`.
        retries: how often a failed member is sent again, alone.
        deadline: seconds after which stragglers are cut off.
    """

    fields: Mapping[str, Any]
    retries: int = 0
    deadline: float | None = None
    on_round: OnRound | None = None
    book: Book = field(default_factory=Book)

    def patience(self, call: Call) -> float | None:
        """Seconds that a call waits for the rest of its answer; None: as long as it takes.

        A round that nobody streams keeps its deadline itself, counted from when it is sent.
        """
        if self.deadline is None or call.streamed:
            return self.deadline
        return self.deadline + PATIENCE * self.book.window + 1.0

    def finished(self, result: RoundResult, calls: Sequence[Call]) -> Bad:
        """Report the round and hand over the answers (calls that have theirs ignore it); returns the failed calls.

        They are to be told `GRACE_S` later: when a node raises, LangGraph drops what other nodes return at that moment,
        and after a resume they would be asked again.
        """
        if self.on_round is not None:
            self.on_round(result)
        return _answered(result, calls, None)

    def broken(self, so_far: RoundResult, calls: Sequence[Call], error: BaseException) -> Bad:
        """As `finished` for a stream that broke: members without their whole answer are to be given `error`."""
        return _answered(so_far, calls, error)


def _answered(result: RoundResult, calls: Sequence[Call], error: BaseException | None) -> Bad:
    bad: Bad = []
    for call in calls:
        member = result[call.agent]
        if member.error is None:
            call.give(member)
        else:
            unfinished = error is not None and member.error.type == INCOMPLETE.type
            bad.append((call, error if error is not None and unfinished else member))
    return bad


class Rounds:
    """Gathers calls of threads and sends them through a `TokenDance` client."""

    def __init__(self, dance: TokenDance, sending: Sending) -> None:
        self._dance = dance
        self._sending = sending

    def outcomes(self, call: Call) -> Generator[AgentResult | RoundEvent, None, None]:
        """Send `call` with its superstep; its pieces as they come, or its whole answer.

        A member that fails on the server's side is sent again alone, `retries` times, unless a piece of its answer is
        out already.

        Raises:
            MemberFailedError: it failed, or its deadline passed.
            openai.OpenAIError, TokenDanceError: its round failed as a whole.
        """
        for left in reversed(range(self._sending.retries + 1)):
            box: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
            call.give = box.put
            self._submit(call, alone=left < self._sending.retries)
            try:
                yield from self._read(call, box)
            except MemberFailedError as error:
                if not left or not call.may_retry(error):
                    raise
                call = call.again()
            else:
                return

    def _read(
        self, call: Call, box: queue.SimpleQueue[Outcome]
    ) -> Generator[AgentResult | RoundEvent, None, None]:
        patience = self._sending.patience(call)
        ends = None if patience is None else time.monotonic() + patience
        try:
            while not call.ended:
                try:
                    outcome = box.get(timeout=None if ends is None else max(0.0, ends - time.monotonic()))
                except queue.Empty:
                    raise call.failed(past_deadline()) from None
                yield call.read(outcome)
        finally:
            call.left = not call.ended

    def _submit(self, call: Call, alone: bool) -> None:
        how, gathering = ("late", None) if alone else self._sending.book.enter(call)
        if how == "joined":
            return
        work = (self._gather, gathering) if how == "opened" else (self._send, [call])
        context = contextvars.copy_context()
        # A daemon: an abandoned request must not keep the program from ending.
        threading.Thread(target=context.run, args=work, name="tokendance-round", daemon=True).start()

    def _gather(self, gathering: Gathering) -> None:
        while (rest := gathering.rest) > 0:
            time.sleep(rest)
        self._send(self._sending.book.close(gathering))

    def _send(self, calls: Sequence[Call]) -> None:
        if not calls:
            return
        try:
            arguments = {**self._sending.fields, **assemble(calls)}
            if any(call.streamed for call in calls):
                self._stream(calls, arguments)
            else:
                result = self._dance.rounds.create(**arguments, deadline=self._sending.deadline)
                self._tell(self._sending.finished(result, calls), calls)
        except BaseException as error:
            for call in calls:
                call.give(error)

    def _stream(self, calls: Sequence[Call], arguments: Mapping[str, Any]) -> None:
        members = {call.agent: call for call in calls}
        with self._dance.rounds.stream(**arguments) as stream:
            try:
                for event in stream:
                    if abandoned(calls):
                        return
                    if event.kind == "chunk" and event.agent_id and members[event.agent_id].streamed:
                        members[event.agent_id].give(event)
                result = stream.result()
            except Exception as error:
                self._tell(self._sending.broken(stream.so_far(), calls, error), calls)
                return
        self._tell(self._sending.finished(result, calls), calls)

    def _tell(self, bad: Bad, calls: Sequence[Call]) -> None:
        if 0 < len(bad) < len(calls):
            time.sleep(GRACE_S)
        for call, outcome in bad:
            call.give(outcome)
