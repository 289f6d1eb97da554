"""Rounds that follow one another: histories are kept, and outputs become the next round's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import PromptError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import DEFAULT_LABEL, History, HistoryItem, Label, RoundPrompt, Turn
from tokendance_sdk.results import RoundResult

if TYPE_CHECKING:
    from tokendance_sdk.async_client import AsyncTokenDance
    from tokendance_sdk.client import TokenDance

Context = Literal["window", "transcript"]
"""What of earlier rounds stays in a prompt: `window` the agent's own outputs, `transcript` everybody's."""

Text = str | Mapping[str, str]
"""One text for all agents, or a text for each."""


@dataclass(slots=True)
class SessionState:
    """Who is in the session and what it has come to; `prompts` reads it, `advance` changes it.

    Attributes:
        session_id: names the family on the server; round ids are `session_id:round`.
        round: number of the next round, from 0.
        shared: the last round's outputs, which the next round's prompts share.
    """

    session_id: str
    histories: dict[str, tuple[HistoryItem, ...]]
    context: Context = "window"
    layout: Layout | None = None
    label: Label | None = DEFAULT_LABEL
    round: int = 0
    shared: tuple[Block, ...] = ()

    @property
    def round_id(self) -> str:
        """Id of the next round: the same when it is tried again."""
        return f"{self.session_id}:{self.round}"

    def prompts(self, task: Text | None, private: Text | None = None) -> list[RoundPrompt]:
        """The next round's prompts, one per agent."""
        return [self._prompt(agent, task, private) for agent in self.histories]

    def advance(self, result: RoundResult, task: Text | None, private: Text | None = None) -> None:
        """Take a round's outputs in: into their author's history, and as the next round's shared blocks.

        Failed members said nothing: their history keeps what it had, and no block of theirs is shared.
        """
        asked = self._alone if self.context == "window" else self._prompt
        for answer in result:
            if answer.ok:
                prompt = asked(answer.agent_id, task, private)
                self.histories[answer.agent_id] = prompt.answered(answer.block)
        self.shared = result.blocks
        self.round += 1

    def _prompt(self, agent: str, task: Text | None, private: Text | None) -> RoundPrompt:
        return RoundPrompt.assemble(
            agent,
            self._with_private(agent, private),
            self.shared,
            self.layout,
            self._of(agent, task, "task"),
            label=self.label,
        )

    def _alone(self, agent: str, task: Text | None, private: Text | None) -> RoundPrompt:
        """What the agent was asked, without what the others said."""
        history, own_task = self._with_private(agent, private), self._of(agent, task, "task")
        if not history and own_task is None:
            return RoundPrompt(agent, ())
        return RoundPrompt.assemble(agent, history, task=own_task)

    def _with_private(self, agent: str, private: Text | None) -> tuple[HistoryItem, ...]:
        own = self._of(agent, private, "private text")
        return self.histories[agent] if own is None else (*self.histories[agent], own)

    def _of(self, agent: str, text: Text | None, what: str) -> str | None:
        if text is None or isinstance(text, str):
            return text
        unknown = set(text) - set(self.histories)
        if unknown:
            known = ", ".join(self.histories)
            raise PromptError(f"{what} for unknown agent {sorted(unknown)[0]!r}; agents: {known}")
        return text.get(agent)


def open_state(
    session_id: str,
    agents: Mapping[str, History],
    context: Context,
    layout: Layout | None,
    label: Label | None,
) -> SessionState:
    """A session before its first round."""
    if context not in ("window", "transcript"):
        raise PromptError(f"got context {context!r}; allowed: window, transcript")
    if not agents:
        raise PromptError("a session has no agents; allowed: at least one, each with its history")
    return SessionState(
        session_id,
        {agent: _items(agent, history) for agent, history in agents.items()},
        context,
        layout,
        label,
    )


def _items(agent: str, history: History) -> tuple[HistoryItem, ...]:
    if isinstance(history, str | Block | Turn):
        return (history,)
    if isinstance(history, Mapping) or not isinstance(history, Sequence):
        raise PromptError(f"history of agent {agent!r} is {type(history).__name__}; allowed: text, or a list")
    return tuple(history)


class Session:
    """`TokenDance.session(...)`: one call per round.

    A round that raises leaves the session as it was: the same call sends the same round, under the same id.
    """

    def __init__(self, owner: TokenDance, state: SessionState, defaults: Mapping[str, Any]) -> None:
        self._owner = owner
        self._defaults = dict(defaults)
        self.state = state

    def round(self, task: Text | None = None, *, private: Text | None = None, **fields: Any) -> RoundResult:
        """Send the next round and take its outputs in.

        Args:
            task: what to do now, for all or for each agent; it ends the prompt.
            private: text that only its agent sees, now and later.
            fields: as for `rounds.create`; they replace the session's own.
        """
        state = self.state
        result = self._owner.rounds.create(**_arguments(state, self._defaults, fields, task, private))
        state.advance(result, task, private)
        return result


class AsyncSession:
    """`AsyncTokenDance.session(...)`: the async twin of `Session`; its rounds go one after another."""

    def __init__(self, owner: AsyncTokenDance, state: SessionState, defaults: Mapping[str, Any]) -> None:
        self._owner = owner
        self._defaults = dict(defaults)
        self.state = state

    async def round(
        self, task: Text | None = None, *, private: Text | None = None, **fields: Any
    ) -> RoundResult:
        """The async twin of `Session.round`."""
        state = self.state
        result = await self._owner.rounds.create(**_arguments(state, self._defaults, fields, task, private))
        state.advance(result, task, private)
        return result


def _arguments(
    state: SessionState,
    defaults: Mapping[str, Any],
    fields: Mapping[str, Any],
    task: Text | None,
    private: Text | None,
) -> dict[str, Any]:
    return {
        **defaults,
        **fields,
        "round_id": state.round_id,
        "session_id": state.session_id,
        "agents": state.prompts(task, private),
    }
