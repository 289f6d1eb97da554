"""The tag a request carries from the front end to the scheduler: which round it belongs to, and its segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokendance_sdk.protocol import BODY_KEY, DEFAULT_FIDELITY, Execution, Fidelity, Placement


@dataclass(frozen=True, slots=True)
class EngineTag:
    """A `RoundTag` resolved by the front end; travels in `SamplingParams.extra_args["kv_transfer_params"]`.

    Attributes:
        round_id, agent_id, session_id: resolved ids (defaults filled in).
        parent: the client request behind this engine request; the children of `n > 1` share it.
        round_size: members to wait for, or None.
        together: every member was submitted in one go, so `round_size` is exact and nobody else will come.
        named: the client gave the agent's name, so that a later round may have the same one.
        automatic: the client sent no round; one is found by content (ids are placeholders until then).
        segments: token offsets of the boundaries, ascending, each in [0, prompt length]; repeats are empty segments.
    """

    round_id: str
    agent_id: str
    session_id: str
    parent: str
    round_size: int | None = None
    together: bool = False
    fidelity: Fidelity = DEFAULT_FIDELITY
    placement: Placement | None = None
    backend: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    execution: Execution = "collective"
    named: bool = True
    automatic: bool = False
    segments: tuple[int, ...] = ()

    def to_params(self) -> dict[str, Any]:
        """As an entry of `kv_transfer_params` (JSON types only)."""
        return {BODY_KEY: {**asdict(self), "segments": list(self.segments)}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any] | None) -> EngineTag | None:
        """Back from `request.kv_transfer_params`; None for a request without a tag."""
        raw = (params or {}).get(BODY_KEY)
        if not isinstance(raw, Mapping):
            return None
        return cls(**{**raw, "segments": tuple(raw["segments"])})
