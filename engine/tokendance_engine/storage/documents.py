"""Documents in a tier: found by a known name, replaced as a whole.

A name leads to a root of fixed size, the root to the document. The root is replaced last, so a reader meets the old
document or the new one, or none.
"""

from __future__ import annotations

import secrets
import struct

import numpy as np

from tokendance_engine.storage.codec import Bytes, Kind
from tokendance_engine.storage.keys import KEY_BYTES
from tokendance_engine.storage.objects import Objects

_ROOT = struct.Struct("<16sQ")


class Documents:
    """Named documents."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def put(self, name: bytes, payload: Bytes) -> bool:
        """Write or replace a document; True once it is confirmed."""
        held = self.get(name)
        if held is not None and np.array_equal(held, payload):
            return True
        target = secrets.token_bytes(KEY_BYTES)
        if not self._objects.write(Kind.MANIFEST, target, payload):
            return False
        self.delete(name)
        root = np.frombuffer(_ROOT.pack(target, len(payload)), dtype=np.uint8)
        return self._objects.write(Kind.ROOT, name, root)

    def get(self, name: bytes) -> Bytes | None:
        """A document, or None.

        Raises:
            BlobError: its root or it is not what was written.
        """
        found = self._root(name)
        if found is None:
            return None
        target, size = found
        payload = np.empty(size, dtype=np.uint8)
        return payload if self._objects.read(Kind.MANIFEST, target, payload) else None

    def delete(self, name: bytes) -> None:
        """Forget a document, whatever state it is in."""
        found = self._root(name)
        self._objects.delete(name, _ROOT.size)
        if found is not None:
            self._objects.delete(*found)

    def _root(self, name: bytes) -> tuple[bytes, int] | None:
        root = np.empty(_ROOT.size, dtype=np.uint8)
        if not self._objects.read(Kind.ROOT, name, root):
            return None
        target, size = _ROOT.unpack(root.tobytes())
        return target, size
