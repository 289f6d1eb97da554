"""A tier on one of LMCache's storage adapters (disk, S3, Mooncake, ...), driven synchronously.

LMCache's `StorageManager` is left out: it needs a second pool in memory through which every blob goes, evicts once a
second, writes behind without confirming, and wants to be told a blob's layout before it reads. Its adapters below
that need none of it: a write returns when the store has it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tokendance_engine.storage.breaker import Breaker
from tokendance_engine.storage.codec import Bytes
from tokendance_engine.storage.errors import TierError
from tokendance_engine.storage.tiers import Got

MODEL = "tokendance"


class LMCacheTier:
    """Blobs behind an L2 adapter of LMCache.

    A blob under a name is not replaced by some adapters (`fs_native`): delete it first.

    Args:
        spec: the adapter's own settings with its `type`, as `lmcache server --l2-adapter` takes them.
        timeout_seconds: longest wait for one operation; after it, the adapter is left alone for `pause_seconds`.

    Raises:
        TierError: LMCache is not installed, or it does not take the settings.
    """

    def __init__(
        self, spec: Mapping[str, Any], timeout_seconds: float = 10.0, pause_seconds: float = 5.0
    ) -> None:
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
        os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
        try:
            from lmcache.v1.distributed.api import ObjectKey
            from lmcache.v1.distributed.l2_adapters import create_l2_adapter
            from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
        except ImportError as error:
            raise TierError("this tier needs LMCache: pip install 'tokendance[lmcache]'") from error
        try:
            args = argparse.Namespace(l2_adapter=[json.dumps(dict(spec))])
            self._adapter: Any = create_l2_adapter(parse_args_to_l2_adapters_config(args).adapters[0])
        except Exception as error:  # adapters raise what their libraries raise
            raise TierError(f"LMCache does not take the tier {dict(spec)}: {error}") from error
        self._object_key: Callable[[bytes, str, int], Any] = ObjectKey
        self._timeout = timeout_seconds
        self.breaker = Breaker(pause_seconds)
        self._late: list[Any] = []

    def put(self, name: bytes, blob: Bytes) -> bool:
        if not self.breaker.closed():
            return False
        held = _memory_object(blob)
        task = self._adapter.submit_store_task([self._object_key(name, MODEL, 0)], [held])
        results: dict[Any, Any] = {}

        def done() -> Any:
            results.update(self._adapter.pop_completed_store_tasks())
            return results.get(task)

        result = self._wait(self._adapter.get_store_event_fd(), done, held)
        return result is not None and bool(result.is_successful())

    def get(self, name: bytes, into: Bytes) -> Got:
        if not self.has(name):
            return Got.ABSENT
        held = _memory_object(into)
        task = self._adapter.submit_load_task([self._object_key(name, MODEL, 0)], [held])
        found = self._wait(
            self._adapter.get_load_event_fd(), lambda: self._adapter.query_load_result(task), held
        )
        return Got.HIT if found is not None and found.test(0) else Got.BROKEN

    def has(self, name: bytes) -> bool:
        if not self.breaker.closed():
            return False
        key = self._object_key(name, MODEL, 0)
        task = self._adapter.submit_lookup_and_lock_task([key], {0: _layout()})
        found = self._wait(
            self._adapter.get_lookup_and_lock_event_fd(),
            lambda: self._adapter.query_lookup_and_lock_result(task),
            None,
        )
        if found is None or not found.test(0):
            return False
        self._adapter.submit_unlock([key])
        return True

    def delete(self, names: Iterable[bytes]) -> None:
        if self.breaker.closed():
            self._adapter.delete([self._object_key(name, MODEL, 0) for name in names])

    def close(self) -> None:
        self._adapter.close()

    def _wait(self, event_fd: int, result: Any, held: Any) -> Any:
        """A task's result, or None after the time-out; its buffer then stays with the adapter."""
        poller = select.poll()
        poller.register(event_fd, select.POLLIN)
        while poller.poll(self._timeout * 1000):
            os.read(event_fd, 8)
            found = result()
            if found is not None:
                return found
        self.breaker.failed()
        self._late.append(held)
        return None


def _memory_object(blob: Bytes) -> Any:
    """LMCache's view of a buffer; nothing is copied."""
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    flat = torch.from_numpy(blob)
    meta = MemoryObjMetadata(
        shape=flat.shape,
        dtype=flat.dtype,
        address=0,
        phy_size=flat.numel(),
        ref_count=1,
        fmt=MemoryFormat.BINARY_BUFFER,
        shapes=[flat.shape],
        dtypes=[flat.dtype],
    )
    return TensorMemoryObj(flat, meta, None)


def _layout() -> Any:
    """Lookups want a layout; the adapters that need one for reading get it from the buffer."""
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    return MemoryLayoutDesc([torch.Size([1])], [torch.uint8])
