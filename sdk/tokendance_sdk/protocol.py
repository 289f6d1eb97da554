"""The wire protocol: names, models and limits, the one definition for SDK and engine.

Nothing here imports openai, vllm or torch.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

PROTOCOL_VERSION = 1

SEPARATOR = "<TTSEP>"
"""Stands between blocks in text; split out before tokenization, never seen by the model."""

ESCAPED_SEPARATOR = "<\u2060TTSEP>"
"""What a literal separator inside somebody's text becomes (a word joiner after `<`); undone by the engine."""

HEADER_ROUND_ID = "X-TokenDance-Round-Id"
HEADER_AGENT_ID = "X-TokenDance-Agent-Id"
HEADER_ROUND_SIZE = "X-TokenDance-Round-Size"
HEADER_SESSION_ID = "X-TokenDance-Session-Id"

HEADER_FIELDS = {
    HEADER_ROUND_ID: "round_id",
    HEADER_AGENT_ID: "agent_id",
    HEADER_ROUND_SIZE: "round_size",
    HEADER_SESSION_ID: "session_id",
}
"""Header name -> field of `RoundTag`."""

BODY_KEY = "tokendance"
"""Field of a request body (the tag) and of a response (the report)."""

ROUNDS_PATH = "/v1/rounds"
STATUS_PATH = "/tokendance/v1/status"
RELEASE_PATH = "/tokendance/v1/release"

ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ID_RULE = "1 to 128 characters of A-Za-z0-9._:-"
MAX_ROUND_SIZE = 4096

Fidelity = Literal["exact", "balanced", "fast"]
FIDELITIES: tuple[Fidelity, ...] = ("exact", "balanced", "fast")
DEFAULT_FIDELITY: Fidelity = "balanced"
Placement = Literal["auto", "shared", "copy"]
PLACEMENTS: tuple[Placement, ...] = ("auto", "shared", "copy")
Execution = Literal["collective", "serial"]
EXECUTIONS: tuple[Execution, ...] = ("collective", "serial")


class FallbackReason(StrEnum):
    """Why a tagged request reused nothing from a round (closed list; `null` when it did).

    `describe()` gives the sentence shown to people.
    """

    EXACT_REQUESTED = "exact_requested"
    NO_SHARED_SEGMENTS = "no_shared_segments"
    ALONE = "alone"
    NO_GAIN = "no_gain"
    UNSUPPORTED_MODEL = "unsupported_model"
    UNSUPPORTED_REQUEST = "unsupported_request"
    NOT_ENOUGH_PAGES = "not_enough_pages"
    MASTER_TOO_LONG = "master_too_long"
    WORKER_ERROR = "worker_error"
    PREFIX_CACHED = "prefix_cached"

    def describe(self) -> str:
        """One sentence for people: what happened and what changes it."""
        return _REASONS[self]


_REASONS = {
    FallbackReason.EXACT_REQUESTED: "fidelity 'exact' was asked for, so nothing approximate was used",
    FallbackReason.NO_SHARED_SEGMENTS: "no segment of this prompt is shared; put <TTSEP> around shared text",
    FallbackReason.ALONE: "no other member arrived in time and the session holds no master yet",
    FallbackReason.NO_GAIN: "reuse would have cost more than it saves (shared text too short)",
    FallbackReason.UNSUPPORTED_MODEL: "the support gate switched reuse off for this model; see /tokendance/v1/status",
    FallbackReason.UNSUPPORTED_REQUEST: "this request uses a feature that is served plainly (LoRA, prompt_logprobs, "
    "multimodal input, prompt embeddings)",
    FallbackReason.NOT_ENOUGH_PAGES: "the KV space had no room for the round's master",
    FallbackReason.MASTER_TOO_LONG: "the shared transcript is longer than the model's context",
    FallbackReason.WORKER_ERROR: "restoring failed, so vLLM recomputed this prompt exactly; see the server log",
    FallbackReason.PREFIX_CACHED: "vLLM's prefix cache already held this prompt",
}


class PlacementReason(StrEnum):
    """Why a member that reused something did not share all of it in place (closed list; `null` when it did)."""

    COPY_REQUESTED = "copy_requested"
    REFERENCE_BACKEND = "reference_backend"
    UNSUPPORTED_RUNNER = "unsupported_runner"
    LONGER_HISTORY = "longer_history"
    SHORTER_HISTORY = "shorter_history"
    NOT_ENOUGH_POSITIONS = "not_enough_positions"
    NO_WHOLE_PAGE = "no_whole_page"

    def describe(self) -> str:
        """One sentence for people: what happened and what changes it."""
        return _PLACEMENT_REASONS[self]


_PLACEMENT_REASONS = {
    PlacementReason.COPY_REQUESTED: "placement 'copy' was asked for",
    PlacementReason.REFERENCE_BACKEND: "the backend is one to compare with, or changes KV member by member: it only "
    "copies",
    PlacementReason.UNSUPPORTED_RUNNER: "vLLM's model runner gives no access to positions",
    PlacementReason.LONGER_HISTORY: "this member's history ends beyond the position of the shared region",
    PlacementReason.SHORTER_HISTORY: "this member would skip more positions than max_skipped_positions (or has the "
    "shared blocks in another order)",
    PlacementReason.NOT_ENOUGH_POSITIONS: "the model has no positions left for what this member would skip",
    PlacementReason.NO_WHOLE_PAGE: "no page is reused whole: blocks are short for the page size and for what is "
    "computed again of each (fidelity 'fast' computes least), or too little is shared to pay for aligning it",
}


class RoundTag(BaseModel):
    """Who a request belongs to: one member of one round.

    Raises pydantic's `ValidationError` naming field, value and rule.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    round_id: str = Field(description=f"Round, {ID_RULE}.")
    agent_id: str | None = Field(default=None, description="Member; default: the request's own id.")
    round_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUND_SIZE,
        strict=True,
        description="Members to wait for; absent: a short window.",
    )
    session_id: str | None = Field(
        default=None, description="Family across rounds; default: round_id up to its last ':'."
    )
    fidelity: Fidelity = Field(
        default=DEFAULT_FIDELITY,
        description="`exact`: computed as vLLM does; `balanced`: recomputes where it pays; `fast`: reuses all it can.",
    )
    placement: Placement | None = Field(
        default=None,
        description="`auto`, `shared` or `copy`: may this member point to the round's pages; default: the server's.",
    )
    backend: str | None = Field(default=None, description="PIC backend for this request (experiments).")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the backend.")
    execution: Execution | None = Field(
        default=None,
        description="`collective`: with the round's other members in one pass; `serial`: alone; default: the server's.",
    )
    segments: list[int] | None = Field(
        default=None, description="Boundaries (token offsets, ascending) of a token-id prompt."
    )

    @field_validator("round_id", "agent_id", "session_id")
    @classmethod
    def _id(cls, value: str | None) -> str | None:
        if value is not None and not ID_PATTERN.fullmatch(value):
            raise ValueError(f"got {value[:140]!r}; allowed: {ID_RULE}")
        return value

    @property
    def session(self) -> str:
        """The family's name: `session_id`, or `round_id` up to its last colon."""
        return self.session_id or self.round_id.rpartition(":")[0] or self.round_id


class MemberReport(BaseModel):
    """What was reused for one member, and what not (token counts; times in milliseconds)."""

    round_id: str = Field(description="As in the tag.")
    agent_id: str = Field(description="As in the tag, or the request's own id.")
    automatic: bool = Field(
        default=False,
        description="The request named no round: it was grouped by content (`round_id` is the engine's).",
    )
    group_size: int = Field(default=1, description="Members planned together.")
    role: Literal["member", "solo"] = Field(default="solo", description="`member` of a group, or alone.")
    prompt_tokens: int = Field(default=0, description="The prompt as sent; separators do not count.")
    filler_tokens: int = Field(
        default=0,
        description="Newlines put before shared regions to fill pages; prompt + filler = cached + reused + "
        "recomputed + fresh.",
    )
    skipped_positions: int = Field(
        default=0,
        description="Positions left out before shared regions, so that they stand where others' stand.",
    )
    cached_tokens: int = Field(default=0, description="Found in vLLM's prefix cache.")
    approximate_cached_tokens: int = Field(
        default=0, description="Of these, computed approximately in an earlier round."
    )
    restored_tokens: int = Field(
        default=0,
        description="Of the cached ones, those that vLLM had lost and that came back from the member's stored history.",
    )
    reused_tokens: int = Field(default=0, description="Restored from the master and not recomputed.")
    shared_tokens: int = Field(
        default=0,
        description="Of the reused ones, those in pages of the master itself: not copied, not stored again.",
    )
    recomputed_tokens: int = Field(
        default=0, description="Restored from the master, then recomputed (selection)."
    )
    checked_tokens: int = Field(
        default=0,
        description="Computed up to the backend's check layer to find out which to recompute; not part of the sum.",
    )
    fresh_tokens: int = Field(default=0, description="Computed because nobody had them.")
    matched: list[tuple[int, int]] = Field(
        default_factory=list, description="Prompt offsets [start, end) of the segments found in the master."
    )
    gather_ms: float = Field(default=0.0, description="Waiting for the other members.")
    restore_ms: float | None = Field(
        default=None, description="Of the whole group; null if the answer ended first."
    )
    compute_ms: float | None = Field(
        default=None, description="Of the whole group; null if the answer ended first."
    )
    backend: str | None = Field(default=None, description="PIC backend used; null with `exact`.")
    fidelity: Fidelity = Field(default=DEFAULT_FIDELITY, description="Asked for.")
    execution: Execution = Field(
        default="collective", description="Together with the other members, or alone."
    )
    placement: Literal["shared", "copy"] | None = Field(
        default=None,
        description="Whether some pages are the master's own, or all were copied; null without reuse.",
    )
    placement_reason: PlacementReason | None = Field(
        default=None, description="Why a region was copied; null if none was."
    )
    fallback_reason: FallbackReason | None = Field(
        default=None, description="Why nothing was reused; null if it was."
    )


class Limits(BaseModel):
    """What one `/v1/rounds` request may hold; more is a 413 that says which limit."""

    model_config = ConfigDict(frozen=True)

    max_agents: int = 256
    max_blocks: int = 1024
    max_block_bytes: int = 1 << 20
    max_body_bytes: int = 32 << 20
    max_segments: int = Field(default=4096, description="Separators in one prompt, plus one.")
