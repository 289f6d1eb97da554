"""Take from members what they hold: pages, their master, and their place in a round."""

from __future__ import annotations

from tokendance_sdk.protocol import FallbackReason

from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member


class LettingGo:
    """Every method may be called again: what is gone is gone.

    Args:
        families: live masters, whose pool members' pages come from.
        page_size: tokens per page.
    """

    def __init__(self, families: Families, page_size: int) -> None:
        self._families = families
        self._page_size = page_size

    def settle(self, member: Member, reason: FallbackReason) -> None:
        """Send a member down vLLM's own path; what it has in the cache stays as it lies."""
        member.reason = reason
        member.found = member.found or []
        if not member.seated:
            member.plan, member.ready = None, False
            member.key_apart(None)
            member.lie(member.earlier.before(member.cached or 0, self._page_size))
            self.release(member)
        self.unpin(member)

    def release(self, member: Member) -> None:
        """Give up the hold on a member's prepared pages; keyed ones stay in vLLM's cache."""
        if member.preparation is not None:
            preparation, member.preparation = member.preparation, None
            preparation.release(self._families.pool)

    def unpin(self, member: Member) -> None:
        """Its master may go as far as this member is concerned."""
        if member.master is not None:
            master, member.master = member.master, None
            self._families.release(master)
