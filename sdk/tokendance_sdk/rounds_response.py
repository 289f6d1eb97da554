"""The answer to `POST /v1/rounds`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tokendance_sdk.protocol import MemberReport

_TIMES = ("gather_ms", "restore_ms", "compute_ms")


class RoundTotals(BaseModel):
    """The `tokendance` object of a whole round: sums of tokens, longest times (milliseconds)."""

    round_id: str
    agents: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    approximate_cached_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    fresh_tokens: int = 0
    gather_ms: float = 0.0
    restore_ms: float = 0.0
    compute_ms: float = 0.0

    @classmethod
    def of(
        cls, round_id: str, members: Iterable[MemberReport], *, agents: int, failed: int = 0
    ) -> RoundTotals:
        """Add up what the members report; `agents` counts all of them, `failed` those without an answer."""
        reports = list(members)
        sums = {
            name: sum(getattr(r, name) for r in reports)
            for name in cls.model_fields
            if name.endswith("_tokens")
        }
        peaks = {name: max((getattr(r, name) or 0.0 for r in reports), default=0.0) for name in _TIMES}
        return cls(round_id=round_id, agents=agents, failed=failed, **sums, **peaks)


class RoundMemberResult(BaseModel):
    """One member's answer: `choices` as in a chat completion, or `error` in OpenAI's shape."""

    model_config = ConfigDict(extra="allow")

    agent_id: str
    index: int = Field(description="Place in the request.")
    choices: list[dict[str, Any]] | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    tokendance: MemberReport | None = None


class RoundResponse(BaseModel):
    """The answer to a round, results in request order."""

    model_config = ConfigDict(extra="allow")

    round_id: str
    results: list[RoundMemberResult]
    usage: dict[str, Any] | None = None
    tokendance: RoundTotals | None = None
