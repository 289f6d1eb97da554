"""A list of AG2 agents that all answer at once, then hear each other: each time one round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ag2.events
from ag2 import Agent, AgentReply, MemoryStream
from ag2.events import BaseEvent, is_conversational
from tokendance_sdk.errors import PromptError
from tokendance_sdk.gathering import OpenRound
from tokendance_sdk.progress import Progress
from tokendance_sdk.prompt import DEFAULT_LABEL
from tokendance_sdk.results import RoundResult
from tokendance_sdk.series import RoundSeries
from tokendance_sdk.session import Text

Reply: TypeAlias = "AgentReply[Any, Any]"


@dataclass(frozen=True, slots=True)
class BroadcastReplies:
    """What one round brought.

    Attributes:
        number: of the round, from 0.
        replies: agent -> its reply, in the agents' order.
        failed: agent -> why it has none (with `on_failure="skip"`).
    """

    number: int
    replies: dict[str, Reply]
    failed: dict[str, Exception] = field(default_factory=dict)

    @property
    def outputs(self) -> dict[str, str]:
        """Agent -> text."""
        return {name: reply.body or "" for name, reply in self.replies.items()}


class Broadcast:
    """Agents that speak in rounds; in the next round each hears the others' outputs, in the agents' order.

    The agents' model calls of a round go out as one request, if their config is a `TokenDanceConfig`; others are
    called as ever. Every agent keeps its own history, on `stream(name)`; subscribe there for events, chunks included.
    Rounds go one after another. Cancelling `round` aborts the request and leaves histories as they were.

    Args:
        session_id: names the conversation on the server; default: a new one. It is part of the saved state.
        label: text before each heard output, with `{owner}`; None for no label.
        on_failure: `raise`: the first failed agent's exception, when all are done; the next `round` asks only those
            that have not answered. `skip`: a failed agent says nothing this round.
        patience, retry_failed, deadline, on_round, progress, fields: as for `RoundSeries`.

    Raises:
        PromptError: no agents, or two of one name.
    """

    def __init__(
        self,
        agents: Sequence[Agent[Any]],
        *,
        session_id: str | None = None,
        label: str | None = DEFAULT_LABEL,
        on_failure: Literal["raise", "skip"] = "raise",
        patience: float | None = 1.0,
        retry_failed: int = 0,
        deadline: float | None = None,
        on_round: Callable[[RoundResult], None] | None = None,
        progress: Progress | None = None,
        **fields: Any,
    ) -> None:
        self._agents = {agent.name: agent for agent in agents}
        if not agents or len(self._agents) != len(agents):
            names = [agent.name for agent in agents]
            raise PromptError(f"got agents {names}; allowed: at least one, each name once")
        self._streams = {name: MemoryStream() for name in self._agents}
        self._label = label
        self._skips = on_failure == "skip"
        self._series = RoundSeries(
            session_id,
            patience=patience,
            on_round=on_round,
            retry_failed=retry_failed,
            deadline=deadline,
            progress=progress,
            **fields,
        )
        self._said: dict[str, str] = {}
        self._answered: dict[str, Reply] = {}

    @property
    def session_id(self) -> str:
        """Names the conversation on the server."""
        return self._series.session_id

    def stream(self, name: str) -> MemoryStream:
        """The agent's stream: its history, and its events as they happen."""
        return self._streams[self._known(name)]

    async def round(self, task: Text | None = None, **arguments: Any) -> BroadcastReplies:
        """Everybody answers once.

        Args:
            task: what to do now, for all or agent -> text; it ends what an agent is told.
            arguments: further arguments of every `agent.ask` (tools, variables, ...).

        Raises:
            PromptError: a task for an unknown agent, or an agent with nothing to answer to.
            Exception: what an agent raised; see `on_failure`.
        """
        for name in task if isinstance(task, Mapping) else ():
            self._known(name)
        asked = [name for name in self._agents if name not in self._answered]
        parts = {name: self._told(name, task) for name in asked}
        opened = self._series.open(asked)
        failed: dict[str, Exception] = {}

        async def ask(name: str) -> None:
            try:
                with opened.seat(name):
                    self._answered[name] = await self._ask(name, parts[name], arguments)
            except Exception as error:
                failed[name] = error

        await self._all(opened, [ask(name) for name in asked])
        if failed and (not self._skips or not self._answered):
            raise next(failed[name] for name in asked if name in failed)
        replies = {name: self._answered[name] for name in self._agents if name in self._answered}
        result = BroadcastReplies(self._series.number, replies, failed)
        self._answered = {}
        self._said = result.outputs
        self._series.advance()
        return result

    async def run(
        self,
        task: Text | None = None,
        *,
        rounds: int,
        until: Callable[[BroadcastReplies], bool] | None = None,
        **arguments: Any,
    ) -> list[BroadcastReplies]:
        """Up to `rounds` rounds, fewer if `until` is true of one; the task is given in the first."""
        done: list[BroadcastReplies] = []
        for number in range(rounds):
            done.append(await self.round(None if number else task, **arguments))
            if until is not None and until(done[-1]):
                break
        return done

    async def state(self) -> dict[str, Any]:
        """Histories, last outputs, session and round number; JSON types only. Between rounds."""
        histories = {
            name: [_saved(e) for e in await stream.history.get_events() if is_conversational(e)]
            for name, stream in self._streams.items()
        }
        return {"series": self._series.state(), "said": dict(self._said), "histories": histories}

    async def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was taken, with agents of the same names."""
        histories = state["histories"]
        if set(histories) != set(self._agents):
            raise PromptError(f"state of agents {sorted(histories)}; allowed: of {sorted(self._agents)}")
        for name, events in histories.items():
            await self._streams[name].history.replace([_loaded(event) for event in events])
        self._series.load(state["series"])
        self._said = dict(state["said"])
        self._answered = {}

    async def _ask(self, name: str, parts: list[str], arguments: dict[str, Any]) -> Reply:
        history = self._streams[name].history
        before = list(await history.get_events())
        try:
            reply: Reply = await self._agents[name].ask(*parts, stream=self._streams[name], **arguments)
            return reply
        except BaseException:
            await history.replace(before)
            raise

    async def _all(self, opened: OpenRound, asking: list[Any]) -> None:
        tasks = [asyncio.ensure_future(each) for each in asking]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _told(self, name: str, task: Text | None) -> list[str]:
        parts: list[str] = []
        for owner, text in self._said.items():
            if owner != name and text:
                parts += [self._label.replace("{owner}", owner)] if self._label else []
                parts.append(text)
        own = task.get(name) if isinstance(task, Mapping) else task
        if own:
            parts += ["\n\n", own] if parts else [own]
        if not parts:
            raise PromptError(f"agent {name!r} has nothing to answer to; allowed: a task, or others' outputs")
        return parts

    def _known(self, name: str) -> str:
        if name not in self._agents:
            raise PromptError(f"got unknown agent {name!r}; agents: {', '.join(self._agents)}")
        return name


def _saved(event: BaseEvent) -> dict[str, Any]:
    return {"type": type(event).__name__, "data": event.to_dict()}


def _loaded(saved: Mapping[str, Any]) -> BaseEvent:
    kind = getattr(ag2.events, saved["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, BaseEvent)):
        raise PromptError(f"state holds an event of type {saved['type']!r}; allowed: AG2's own events")
    event: BaseEvent = kind.from_dict(saved["data"])  # type: ignore[attr-defined,unused-ignore]
    return event
