"""Pages that vLLM has keyed but that nobody has written yet.

vLLM keys a page when it schedules the tokens, so the next request of the same step can hit it. A plain request may: one
forward pass writes every layer before it reads it. A member may not, since its tokens are computed before that pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Unwritten:
    """All live requests, tagged or not.

    Args:
        page_size: tokens per page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._live: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """A request arrived."""
        self._live[request.request_id] = request

    def drop(self, request: Request) -> None:
        """A request ended; a no-op for an unknown one."""
        self._live.pop(request.request_id, None)

    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def running(self) -> int:
        """Requests that vLLM is running."""
        return sum(r.status == RequestStatus.RUNNING for r in self._live.values())

    def in_progress(self, request: Request, cached: int) -> bool:
        """Whether the first `cached` tokens lie in pages that a running request writes in this step or later.

        Keys are chained, so two requests share a page only if they share all pages before it: one comparison each.
        """
        keys, pages = request.block_hashes, cached // self._page_size
        for other in self._live.values():
            at = other.num_computed_tokens // self._page_size
            if at >= pages or other is request or other.status != RequestStatus.RUNNING:
                continue
            if at < len(other.block_hashes) and other.block_hashes[at] == keys[at]:
                return True
        return False
