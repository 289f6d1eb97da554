"""Pages that vLLM has keyed but that nobody has written yet.

vLLM keys a page when it schedules the tokens, so the next request of the same step can hit it. A plain request may: one
forward pass writes every layer before it reads it. A member may not, since its tokens are computed before that pass;
and nobody may depend on pages that a load of the same step still has to fill.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Unwritten:
    """All live requests, tagged or not, and the pages promised in this step.

    Args:
        page_size: tokens per page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._live: dict[str, Request] = {}
        self._promised: set[bytes] = set()

    def add(self, request: Request) -> None:
        """A request arrived."""
        self._live[request.request_id] = request

    def drop(self, request: Request) -> None:
        """A request ended; a no-op for an unknown one."""
        self._live.pop(request.request_id, None)

    def promise(self, keys: Iterable[bytes]) -> None:
        """The worker will fill the pages with these keys in this step."""
        self._promised.update(map(bytes, keys))

    def next_step(self) -> None:
        """The step was handed to the worker; what follows comes after it."""
        self._promised.clear()

    def promised(self, request: Request, cached: int) -> bool:
        """Whether the first `cached` tokens of a request lie in pages promised in this step."""
        if not cached or not self._promised:
            return False
        return any(bytes(key) in self._promised for key in request.block_hashes[: cached // self._page_size])

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
