"""`POST /v1/rounds`: request and answer, the one definition for SDK and engine.

All text in a request is wire text: a separator in it is a boundary, and `tokendance_sdk.blocks.escape`
protects a literal one. Validation errors are pydantic's `ValidationError`, each with the value and what is
allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tokendance_sdk.content import expand_messages, strip_messages
from tokendance_sdk.protocol import (
    DEFAULT_FIDELITY,
    ID_PATTERN,
    ID_RULE,
    MAX_ROUND_SIZE,
    Execution,
    Fidelity,
    Limits,
    Placement,
    RoundTag,
)
from tokendance_sdk.rounds_response import RoundMemberResult, RoundResponse, RoundTotals

__all__ = [
    "BlockPart",
    "RoundAgent",
    "RoundMemberResult",
    "RoundRequest",
    "RoundResponse",
    "RoundTotals",
    "TextPart",
]

_TAG_FIELDS = ("fidelity", "placement", "backend", "options", "execution")
_NOT_FOR_AGENTS = (
    "model",
    "round_id",
    "session_id",
    "round_size",
    "blocks",
    "agents",
    "stream",
    "tokendance",
)
_NOT_FOR_ROUNDS = ("messages", "prompt", "agent_id", "round_size", "tokendance")


def _valid_id(value: str) -> str:
    if not ID_PATTERN.fullmatch(value):
        raise ValueError(f"got {value[:140]!r}; allowed: {ID_RULE}")
    return value


def _shape(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"


def _check_message(message: Mapping[str, Any], where: str, refs: Mapping[str, str]) -> None:
    if not isinstance(message.get("role"), str):
        raise ValueError(f"{where}.role: got {_shape(message.get('role'))}; allowed: a role name")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise ValueError(
            f"{where}.content: got {_shape(content)}; allowed: text, a list of content parts, null"
        )
    for number, part in enumerate(content if isinstance(content, list) else ()):
        wrong = _wrong_part(part, refs)
        if wrong is not None:
            raise ValueError(f"{where}.content[{number}]{wrong}")


def _wrong_part(part: Any, refs: Mapping[str, str]) -> str | None:
    """What is wrong with a content part, if anything; a round of many agents has tens of thousands."""
    kind = part.get("type") if isinstance(part, dict | Mapping) else None
    if not isinstance(kind, str):
        return f": got {_shape(part)}; allowed: an object with a 'type'"
    if kind == "text" and not isinstance(part.get("text"), str):
        return f".text: got {_shape(part.get('text'))}; allowed: text"
    if kind == "block":
        ref = part.get("ref")
        if not isinstance(ref, str) or ref not in refs:
            known = ", ".join(sorted(refs)[:20]) or "none, 'blocks' is empty"
            return f".ref: got unknown block {str(ref)[:140]!r}; known blocks: {known}"
    return None


class BlockPart(BaseModel):
    """A content part that stands for a shared block; the engine puts a separator on either side of it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["block"] = "block"
    ref: str


class TextPart(BaseModel):
    """A content part of text that is this agent's own (labels, tasks, private history)."""

    type: Literal["text"] = "text"
    text: str


class RoundAgent(BaseModel):
    """One member: its messages, and whatever it wants otherwise than the round's defaults.

    Messages are OpenAI's, whose content may also hold `BlockPart`s; other part types pass through.
    """

    model_config = ConfigDict(extra="allow")

    agent_id: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    fidelity: Fidelity | None = None
    placement: Placement | None = None
    backend: str | None = None
    options: dict[str, Any] | None = None
    execution: Execution | None = None

    _id = field_validator("agent_id")(_valid_id)

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields of a chat request that replace the round's defaults for this agent."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _only_member_fields(self) -> RoundAgent:
        wrong = [name for name in _NOT_FOR_AGENTS if name in self.overrides]
        if wrong:
            raise ValueError(
                f"agent {self.agent_id!r} sets {wrong[0]!r}; allowed: set it once, for the whole round"
            )
        return self


class RoundRequest(BaseModel):
    """A whole round. Fields that are not listed here are sampling defaults of every member."""

    model_config = ConfigDict(extra="allow")

    model: str
    round_id: str
    session_id: str | None = None
    blocks: dict[str, str] = Field(default_factory=dict, description="Block id -> wire text; travels once.")
    agents: list[RoundAgent]
    fidelity: Fidelity = DEFAULT_FIDELITY
    placement: Placement | None = None
    backend: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    execution: Execution | None = None
    stream: bool = False

    _round_id = field_validator("round_id")(_valid_id)

    @field_validator("session_id")
    @classmethod
    def _session(cls, value: str | None) -> str | None:
        return None if value is None else _valid_id(value)

    @field_validator("blocks")
    @classmethod
    def _block_ids(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            _valid_id(name)
        return value

    @field_validator("agents")
    @classmethod
    def _distinct(cls, agents: list[RoundAgent]) -> list[RoundAgent]:
        if not 1 <= len(agents) <= MAX_ROUND_SIZE:
            raise ValueError(f"got {len(agents)} agents; allowed: 1 to {MAX_ROUND_SIZE}")
        seen: set[str] = set()
        for agent in agents:
            if agent.agent_id in seen:
                raise ValueError(
                    f"agent {agent.agent_id!r} is there twice; allowed: each agent once per round"
                )
            seen.add(agent.agent_id)
        return agents

    @model_validator(mode="after")
    def _consistent(self) -> RoundRequest:
        wrong = [name for name in _NOT_FOR_ROUNDS if name in (self.model_extra or {})]
        if wrong:
            raise ValueError(f"a round has no field {wrong[0]!r}; allowed: messages and ids go into 'agents'")
        for agent in self.agents:
            for number, message in enumerate(agent.messages):
                _check_message(message, f"agent {agent.agent_id!r}, messages[{number}]", self.blocks)
        return self

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling fields for every member (temperature, max_tokens, tools, ...)."""
        return dict(self.model_extra or {})

    def tag(self, agent: RoundAgent, round_size: int | None = None) -> RoundTag:
        """The agent's round tag; its own choices go before the round's."""
        own = {name: getattr(agent, name) for name in _TAG_FIELDS if getattr(agent, name) is not None}
        return RoundTag(
            round_id=self.round_id,
            session_id=self.session_id,
            agent_id=agent.agent_id,
            round_size=round_size,
            **{
                "fidelity": self.fidelity,
                "placement": self.placement,
                "backend": self.backend,
                "options": self.options,
                "execution": self.execution,
                **own,
            },
        )

    def chat_body(self, agent: RoundAgent, *, plain: bool = False) -> dict[str, Any]:
        """The agent's own chat request: model, messages with blocks inlined, defaults, overrides.

        It has no tag and no `stream`. Separators stand around every block; with `plain` they are left out and
        text is unescaped, as for a server that knows nothing of rounds.
        """
        messages = expand_messages(agent.messages, self.blocks)
        if plain:
            messages = strip_messages(messages)
        return {"model": self.model, "messages": messages, **self.defaults, **agent.overrides}

    def exceeded(self, limits: Limits) -> str | None:
        """Which limit this request breaks, with the number found and the limit; None if it keeps them all."""
        if len(self.agents) > limits.max_agents:
            return f"got {len(self.agents)} agents; allowed: at most {limits.max_agents} (max_agents)"
        if len(self.blocks) > limits.max_blocks:
            return f"got {len(self.blocks)} blocks; allowed: at most {limits.max_blocks} (max_blocks)"
        for name, text in self.blocks.items():
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > limits.max_block_bytes:
                most = limits.max_block_bytes
                return f"block {name!r} has {size} bytes; allowed: at most {most} (max_block_bytes)"
        return None
