"""Where blobs go below memory: one small interface, and a tier in this process's own memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from tokendance_engine.storage.codec import Bytes


class Got(Enum):
    """How a read ended."""

    HIT = "hit"
    ABSENT = "absent"
    BROKEN = "broken"


class Tier(Protocol):
    """Blobs by 16-byte names. No method raises for what a disk, a network or a server does.

    `put` and `delete` return when the tier has confirmed (or failed); a blob under a name never changes unless it is
    deleted first.
    """

    def put(self, name: bytes, blob: Bytes) -> bool:
        """Store a blob; True once it can be read back. The buffer is the caller's again."""
        ...

    def get(self, name: bytes, into: Bytes) -> Got:
        """Fill `into`; the blob must have exactly its size (otherwise BROKEN, and `into` holds anything)."""
        ...

    def has(self, name: bytes) -> bool:
        """Whether a blob is there; counts as a use of it."""
        ...

    def delete(self, names: Iterable[bytes]) -> None:
        """Forget blobs; unknown names are skipped."""
        ...

    def close(self) -> None:
        """Let go of threads and connections; stored blobs stay."""
        ...


class MemoryTier:
    """Blobs in memory, least recently used first to go.

    Args:
        capacity: most bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blobs: OrderedDict[bytes, Bytes] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes held."""
        return sum(len(blob) for blob in self.blobs.values())

    def put(self, name: bytes, blob: Bytes) -> bool:
        if len(blob) > self.capacity:
            return False
        if name not in self.blobs:
            while self.used + len(blob) > self.capacity:
                self.blobs.popitem(last=False)
            self.blobs[name] = blob.copy()
        self.blobs.move_to_end(name)
        return True

    def get(self, name: bytes, into: Bytes) -> Got:
        blob = self.blobs.get(name)
        if blob is None:
            return Got.ABSENT
        if len(blob) != len(into):
            return Got.BROKEN
        into[:] = blob
        self.blobs.move_to_end(name)
        return Got.HIT

    def has(self, name: bytes) -> bool:
        if name not in self.blobs:
            return False
        self.blobs.move_to_end(name)
        return True

    def delete(self, names: Iterable[bytes]) -> None:
        for name in names:
            self.blobs.pop(name, None)

    def close(self) -> None:
        return
