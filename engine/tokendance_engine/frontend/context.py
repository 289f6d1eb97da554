"""What the front end knows about the HTTP request being served, carried by a context variable."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokendance_sdk.protocol import RoundTag

from tokendance_engine.errors import RequestRejectedError

if TYPE_CHECKING:
    from tokendance_engine.frontend.muster import Muster


@dataclass(slots=True)
class RequestState:
    """One client request (or one member of a `/v1/rounds` request). Mutable: filled in as it is served.

    Attributes:
        tag: who the request belongs to; None: an ordinary request, which nothing of ours may touch.
        automatic: the tag is ours: the client named no round, and the engine looks for one by content.
        refusal: why the request is not served, once that was found; its tag stays None.
        reports: engine request id -> member report, as they come back from the engine.
        muster: where the members of a `/v1/rounds` request wait for each other; None: a request of its own.
        index: place among the members of the muster.
        size: exact number of members, known once the muster is complete.
    """

    tag: RoundTag | None = None
    automatic: bool = False
    refusal: RequestRejectedError | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    muster: Muster | None = None
    index: int = 0
    size: int | None = None


CURRENT: ContextVar[RequestState | None] = ContextVar("tokendance_request", default=None)


def tagged_state() -> RequestState | None:
    """The request being served if it carries a tag, else None."""
    state = CURRENT.get()
    return state if state is not None and state.tag is not None else None
