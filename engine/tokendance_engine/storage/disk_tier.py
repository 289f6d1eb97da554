"""A tier in a folder, through LMCache's native file adapter, with the accounting that it lacks.

The adapter counts only what its own process wrote. Here the folder is read at start, so that the capacity bounds what
earlier runs left, too; the least recently used blobs go first.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from tokendance_engine.storage.codec import Bytes
from tokendance_engine.storage.errors import TierError
from tokendance_engine.storage.lmcache_tier import LMCacheTier
from tokendance_engine.storage.tiers import Got

_FILE = re.compile(r".*@([0-9a-f]{32})\.data")


class DiskTier:
    """Blobs as files.

    Args:
        folder: made if it does not exist; one engine process at a time (each tensor-parallel rank needs its own).
        capacity: most bytes of blobs, those of earlier runs included.
        threads: of the adapter.

    Raises:
        TierError: LMCache is not installed, or the folder cannot be used.
    """

    def __init__(self, folder: Path, capacity: int, threads: int = 2) -> None:
        if capacity < 1:
            raise TierError(f"disk tier capacity of {capacity} bytes; must be at least 1")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TierError(f"disk tier folder {str(folder)!r} cannot be made: {error}") from error
        self.folder = folder
        self.capacity = capacity
        self._sizes = self._scan()
        self.used = sum(self._sizes.values())
        self._files = LMCacheTier({"type": "fs_native", "base_path": str(folder), "num_workers": threads})
        self._shrink(0)

    def put(self, name: bytes, blob: Bytes) -> bool:
        if name in self._sizes:
            return self.has(name)
        if len(blob) > self.capacity:
            return False
        self._shrink(len(blob))
        if self.used + len(blob) > self.capacity or not self._files.put(name, blob):
            return False
        self._sizes[name] = len(blob)
        self.used += len(blob)
        return True

    def get(self, name: bytes, into: Bytes) -> Got:
        if name not in self._sizes:
            return Got.ABSENT
        got = self._files.get(name, into)
        if got is Got.ABSENT and self._files.breaker.closed():
            self._forget(name)
        elif name in self._sizes:
            self._sizes.move_to_end(name)
        return got

    def has(self, name: bytes) -> bool:
        if name not in self._sizes:
            return False
        if not self._files.has(name):
            if self._files.breaker.closed():
                self._forget(name)
            return False
        self._sizes.move_to_end(name)
        return True

    def delete(self, names: Iterable[bytes]) -> None:
        if not self._files.breaker.closed():
            return
        mine = [name for name in names if name in self._sizes]
        self._files.delete(mine)
        for name in mine:
            self._forget(name)

    def close(self) -> None:
        self._files.close()

    def check(self) -> None:
        """Raise AssertionError unless the account agrees with the folder and the capacity."""
        assert dict(self._scan()) == dict(self._sizes), "the account differs from the folder"
        assert self.used == sum(self._sizes.values()) <= self.capacity

    def _scan(self) -> OrderedDict[bytes, int]:
        """Blobs in the folder, oldest first."""
        found = []
        for file in self.folder.iterdir():
            match = _FILE.fullmatch(file.name)
            if match:
                stat = file.stat()
                found.append((stat.st_mtime_ns, bytes.fromhex(match[1]), stat.st_size))
        return OrderedDict((name, size) for _, name, size in sorted(found))

    def _shrink(self, room: int) -> None:
        for name in list(self._sizes):
            if self.used + room <= self.capacity:
                return
            self.delete([name])

    def _forget(self, name: bytes) -> None:
        self.used -= self._sizes.pop(name)
