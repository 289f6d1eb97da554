"""Tiers from their JSON settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokendance_engine.storage.codec import Bytes
from tokendance_engine.storage.disk_tier import DiskTier
from tokendance_engine.storage.errors import TierError
from tokendance_engine.storage.lmcache_tier import LMCacheTier
from tokendance_engine.storage.redis_tier import RedisTier
from tokendance_engine.storage.tiers import Got, MemoryTier, Tier

OWN: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "memory": {"capacity_gb": (int, float)},
    "disk": {"path": (str,), "capacity_gb": (int, float)},
    "redis": {"url": (str,)},
}
"""Tier type -> its required settings. Every other type is an adapter of LMCache, with LMCache's settings."""

OPTIONAL: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "memory": {},
    "disk": {"threads": (int,)},
    "redis": {"timeout_seconds": (int, float), "pause_seconds": (int, float), "ttl_seconds": (int,)},
}
_GB = 1 << 30


def open_tier(spec: Mapping[str, Any] | Sequence[Mapping[str, Any]], rank: int = 0) -> Tier:
    """Open a tier, or several of which the first that has a blob answers.

    Args:
        spec: `{"type": "disk", "path": "/var/kv", "capacity_gb": 10}`, `{"type": "redis", "url": "redis://host"}`,
            `{"type": "memory", "capacity_gb": 1}`, `{"type": <adapter of LMCache>, ...}`, or a list of these.
        rank: tensor-parallel rank; each has its own folder below a disk tier's path.

    Raises:
        TierError: a setting is wrong, or a package is missing.
    """
    if not isinstance(spec, Mapping):
        if not spec:
            raise TierError("an empty list of tiers; give at least one, or none at all")
        return Stack([open_tier(each, rank) for each in spec])
    kind = spec.get("type")
    if not isinstance(kind, str):
        raise TierError(f"tier {dict(spec)} has no type; allowed: {', '.join(OWN)}, or an adapter of LMCache")
    settings = {name: value for name, value in spec.items() if name != "type"}
    if kind not in OWN:
        return LMCacheTier(spec)
    _check(kind, settings)
    if kind == "redis":
        return RedisTier(**settings)
    capacity = int(settings.pop("capacity_gb") * _GB)
    if kind == "memory":
        return MemoryTier(capacity)
    return DiskTier(Path(settings.pop("path")) / f"rank{rank}", capacity, **settings)


def _check(kind: str, settings: Mapping[str, Any]) -> None:
    allowed = {**OWN[kind], **OPTIONAL[kind]}
    unknown = settings.keys() - allowed.keys()
    missing = OWN[kind].keys() - settings.keys()
    if unknown or missing:
        raise TierError(
            f"tier {kind!r}: unknown settings {sorted(unknown)}, missing settings {sorted(missing)}; "
            f"allowed: {', '.join(allowed)}"
        )
    for name, value in settings.items():
        negative = isinstance(value, int | float) and value < 0
        if not isinstance(value, allowed[name]) or isinstance(value, bool) or negative:
            wanted = "a text" if allowed[name] == (str,) else "a number, at least 0"
            raise TierError(f"tier {kind!r}: {name} is {value!r}; allowed: {wanted}")


class Stack:
    """Several tiers: every blob is written to all, and read from the first that has it."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tiers

    def put(self, name: bytes, blob: Bytes) -> bool:
        confirmed = [tier.has(name) or tier.put(name, blob) for tier in self._tiers]
        return any(confirmed)

    def get(self, name: bytes, into: Bytes) -> Got:
        got = [Got.ABSENT]
        for tier in self._tiers:
            got.append(tier.get(name, into))
            if got[-1] is Got.HIT:
                return Got.HIT
        return Got.BROKEN if Got.BROKEN in got else Got.ABSENT

    def has(self, name: bytes) -> bool:
        found = [tier.has(name) for tier in self._tiers]
        return all(found)

    def delete(self, names: Iterable[bytes]) -> None:
        listed = list(names)
        for tier in self._tiers:
            tier.delete(listed)

    def close(self) -> None:
        for tier in self._tiers:
            tier.close()


class Later:
    """A tier that opens in a thread of its own (importing LMCache takes seconds); until then it holds nothing.

    Attributes:
        error: why it could not be opened, or None.
    """

    def __init__(self, opener: Callable[[], Tier]) -> None:
        self.error: str | None = None
        self._tier: Tier | None = None
        self._opener = opener
        self._thread = threading.Thread(target=self._open, name="tokendance-tier", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until it is open; False if it is not by then."""
        self._thread.join(seconds)
        return self._tier is not None

    def put(self, name: bytes, blob: Bytes) -> bool:
        return self._tier is not None and self._tier.put(name, blob)

    def get(self, name: bytes, into: Bytes) -> Got:
        return self._tier.get(name, into) if self._tier is not None else Got.ABSENT

    def has(self, name: bytes) -> bool:
        return self._tier is not None and self._tier.has(name)

    def delete(self, names: Iterable[bytes]) -> None:
        if self._tier is not None:
            self._tier.delete(names)

    def close(self) -> None:
        self._thread.join()
        if self._tier is not None:
            self._tier.close()

    def _open(self) -> None:
        try:
            self._tier = self._opener()
        except Exception as error:  # whatever it is, the engine runs on without the tier
            self.error = str(error)
