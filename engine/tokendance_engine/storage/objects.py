"""Objects of any size in a tier, through one small staging buffer: cut into chunks, each a checked blob."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokendance_engine.storage.codec import HEADER_BYTES, Bytes, Kind, open_blob, seal
from tokendance_engine.storage.errors import BlobError
from tokendance_engine.storage.keys import digest
from tokendance_engine.storage.tiers import Got, Tier

CHUNK_BYTES = 4 << 20


class Objects:
    """Reads and writes objects of one model.

    Args:
        model: 16 bytes that stand for model and layout; part of every blob.
        chunk_bytes: payload of one blob; the staging buffer has that and a header.
    """

    def __init__(self, tier: Tier, model: bytes, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._tier = tier
        self._model = model
        self._chunk = chunk_bytes
        self._staging = np.empty(HEADER_BYTES + chunk_bytes, dtype=np.uint8)

    @property
    def staging_bytes(self) -> int:
        return self._staging.nbytes

    def write(self, kind: Kind, name: bytes, payload: Bytes) -> bool:
        """Store an object whose name nobody used for other bytes; True once all of it is confirmed."""
        for chunk, start, end in self._chunks(name, len(payload)):
            if self._tier.has(chunk):
                continue
            blob = self._staging[: HEADER_BYTES + end - start]
            blob[HEADER_BYTES:] = payload[start:end]
            seal(blob, kind, self._model, chunk)
            if not self._tier.put(chunk, blob):
                self._replace_staging()
                return False
        return True

    def read(self, kind: Kind, name: bytes, into: Bytes) -> bool:
        """Fill `into` with an object of its size; False if (part of) it is not there.

        Raises:
            BlobError: part of it is not what was written; that part is deleted, so that it can be written again.
        """
        for chunk, start, end in self._chunks(name, len(into)):
            blob = self._staging[: HEADER_BYTES + end - start]
            got = self._tier.get(chunk, blob)
            if got is Got.ABSENT:
                return False
            try:
                if got is Got.BROKEN:
                    self._replace_staging()
                    raise BlobError(
                        "truncated", f"blob {chunk.hex()} has not the {len(blob)} bytes it must have"
                    )
                into[start:end] = open_blob(blob, kind, self._model, chunk)
            except BlobError:
                self._tier.delete([chunk])
                raise
        return True

    def has(self, name: bytes, size: int) -> bool:
        """Whether all of an object is there; counts as a use of it."""
        found = [self._tier.has(chunk) for chunk, _, _ in self._chunks(name, size)]
        return all(found)

    def delete(self, name: bytes, size: int) -> None:
        """Forget an object."""
        self._tier.delete([chunk for chunk, _, _ in self._chunks(name, size)])

    def _replace_staging(self) -> None:
        # A tier that gave up waiting may still write into the old buffer, and must not do so into a later blob.
        self._staging = np.empty_like(self._staging)

    def _chunks(self, name: bytes, size: int) -> Iterator[tuple[bytes, int, int]]:
        for i, start in enumerate(range(0, max(size, 1), self._chunk)):
            yield digest(name, i.to_bytes(4, "little")), start, min(size, start + self._chunk)
