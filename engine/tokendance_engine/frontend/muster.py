"""A barrier: the members of a round go to the engine together, each knowing how many they are."""

from __future__ import annotations

import asyncio


class Muster:
    """Waits until every expected member has either arrived or dropped out.

    Each member calls `arrive` or `drop`; only its first call counts. Single event loop, not thread-safe.
    """

    def __init__(self, members: int) -> None:
        self._open = set(range(members))
        self._arrived = 0
        self._complete = asyncio.Event()

    async def arrive(self, member: int) -> int:
        """Wait for the others; returns the number of members that arrived.

        A member that is cancelled while it waits no longer counts.
        """
        if member in self._open:
            self._open.discard(member)
            self._arrived += 1
            self._check()
            try:
                await self._complete.wait()
            except asyncio.CancelledError:
                self._arrived -= 1
                raise
        return self._arrived

    def drop(self, member: int) -> None:
        """The member will not come (refused, failed); a no-op once it has arrived or dropped."""
        if member in self._open:
            self._open.discard(member)
            self._check()

    def _check(self) -> None:
        if not self._open:
            self._complete.set()
