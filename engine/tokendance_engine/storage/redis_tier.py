"""A tier in Redis or Valkey, shared between hosts. What it may hold is the server's `maxmemory` and eviction policy.

It speaks through redis-py, which LMCache itself requires, and not through LMCache's `resp` adapter: that client waits
for ever for a key that is not there, and loses its place in the stream when a value has another size than expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tokendance_engine.storage.breaker import Breaker
from tokendance_engine.storage.codec import Bytes
from tokendance_engine.storage.errors import TierError
from tokendance_engine.storage.tiers import Got

PREFIX = b"tokendance:"


class RedisTier:
    """Blobs in a Redis or Valkey server.

    Args:
        url: `redis://[user:password@]host:port[/db]`, `rediss://...` or `unix://...`.
        timeout_seconds: of connecting and of every command.
        pause_seconds: how long a server that did not answer is left alone.
        ttl_seconds: blobs unused for this long expire; 0: never.

    Raises:
        TierError: redis-py is not installed, or it does not take the address. A server that is down is no error.
    """

    def __init__(
        self, url: str, timeout_seconds: float = 2.0, pause_seconds: float = 5.0, ttl_seconds: int = 0
    ) -> None:
        try:
            import redis
        except ImportError as error:
            raise TierError(
                "a Redis tier needs the package redis: pip install 'tokendance[lmcache]'"
            ) from error
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds
            )
        except ValueError as error:
            raise TierError(f"tier address {url.split('@')[-1]!r}: {error}") from error
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._ttl = ttl_seconds or None
        self.breaker = Breaker(pause_seconds)

    def put(self, name: bytes, blob: Bytes) -> bool:
        return bool(self._try("set", PREFIX + name, blob.data, ex=self._ttl))

    def get(self, name: bytes, into: Bytes) -> Got:
        value = self._try("get", PREFIX + name)
        if value is None:
            return Got.ABSENT
        if len(value) != len(into):
            return Got.BROKEN
        into[:] = np.frombuffer(value, dtype=np.uint8)
        return Got.HIT

    def has(self, name: bytes) -> bool:
        if self._ttl:
            return bool(self._try("expire", PREFIX + name, self._ttl))
        return bool(self._try("exists", PREFIX + name))

    def delete(self, names: Iterable[bytes]) -> None:
        keys = [PREFIX + name for name in names]
        if keys:
            self._try("unlink", *keys)

    def close(self) -> None:
        self._client.close()

    def _try(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """A command's answer; None if the server did not give one."""
        if not self.breaker.closed():
            return None
        try:
            return getattr(self._client, command)(*args, **kwargs)
        except self._errors:
            self.breaker.failed()
            return None
