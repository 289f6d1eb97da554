"""What all members of a session start with: a system prompt, which the store need not keep once per member."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tokendance_engine.adapters.vllm.members import Member

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import BlockHash

_SESSIONS = 1024
"""Most sessions whose start is remembered; of others a start is stored per member."""


class CommonStarts:
    """Leading pages that have the same keys in all members of a session.

    Equal keys say that vLLM's prefix cache may have served these pages to all of them. Whether it did does not matter:
    the store compares the bytes.

    Args:
        page_size: tokens per page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._starts: OrderedDict[tuple[str, ...], tuple[str | None, list[BlockHash]]] = OrderedDict()

    def arrived(self, member: Member) -> None:
        """Take a new member into account; called once per request, before anything is computed of it."""
        session, agent = member.family[:2], member.tag.agent_id
        keys = member.request.block_hashes[: len(member.prompt) // self._page_size]
        alone, start = self._starts.pop(session, (agent, keys))
        if alone != agent:  # None: several agents have come already
            same = (n for n, (a, b) in enumerate(zip(start, keys, strict=False)) if a != b)
            alone, start = None, start[: next(same, min(len(start), len(keys)))]
        self._starts[session] = alone, start
        if len(self._starts) > _SESSIONS:
            self._starts.popitem(last=False)

    def of(self, member: Member) -> int:
        """Tokens with which all members of its session start, as it lies; 0 while no other agent has come.

        What lies there is exact and stands at positions from 0 on, without fillers.
        """
        alone, start = self._starts.get(member.family[:2], (member.tag.agent_id, []))
        if alone is not None:
            return 0
        lies, size = member.lies, len(start) * self._page_size
        ends = [at for at, _ in lies.filling.inserts[:1]]
        ends += [at for at, shift in lies.frame.steps if shift][:1]
        ends += [point.page * self._page_size for point in lies.points[:1]]
        return min(size, *ends) // self._page_size * self._page_size if ends else size

    def forget(self) -> None:
        """The store was emptied."""
        self._starts.clear()
