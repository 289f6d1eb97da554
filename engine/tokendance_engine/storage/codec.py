"""Blobs that leave this process: a versioned header with a checksum in front of every payload.

    magic 4 | version 2 | kind 2 | payload bytes 8 | model 16 | name 16 | checksum 16      (little endian, 64 bytes)

Whatever does not fit is a `BlobError` with a reason, so that it can be counted as a miss.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tokendance_engine.storage.errors import BlobError
from tokendance_engine.storage.keys import digest

MAGIC = b"TDKV"
VERSION = 1
_HEADER = struct.Struct("<4sHHQ16s16s16s")
HEADER_BYTES = _HEADER.size

Bytes = npt.NDArray[np.uint8]


class Kind(IntEnum):
    """What a payload is."""

    ROOT = 1
    MANIFEST = 2
    ROWS = 3


def seal(blob: Bytes, kind: Kind, model: bytes, name: bytes) -> None:
    """Write the header into the first 64 bytes of a blob whose payload is in place."""
    payload = blob[HEADER_BYTES:]
    head = _HEADER.pack(
        MAGIC, VERSION, kind, len(payload), model, name, _checksum(kind, model, name, payload)
    )
    blob[:HEADER_BYTES] = np.frombuffer(head, dtype=np.uint8)


def open_blob(blob: Bytes, kind: Kind, model: bytes, name: bytes) -> Bytes:
    """The payload of a blob, a view.

    Raises:
        BlobError: it is shorter than it says, no blob of ours or of another model or name, of another version, or
            its bytes changed.
    """
    if len(blob) < HEADER_BYTES:
        raise BlobError("truncated", f"a blob of {len(blob)} bytes; a header has {HEADER_BYTES}")
    magic, version, is_kind, size, is_model, is_name, checksum = _HEADER.unpack(blob[:HEADER_BYTES].tobytes())
    if magic != MAGIC:
        raise BlobError("foreign", f"a blob starts with {magic!r}; ours start with {MAGIC!r}")
    if version != VERSION:
        raise BlobError("version", f"a blob of version {version}; this is version {VERSION}")
    if is_model != model:
        raise BlobError("layout", f"KV of model {is_model.hex()}; this is {model.hex()}")
    if (is_kind, is_name) != (kind, name):
        raise BlobError("foreign", f"blob {is_name.hex()} of kind {is_kind} under the name {name.hex()}")
    payload = blob[HEADER_BYTES:]
    if size != len(payload):
        raise BlobError("truncated", f"a payload of {len(payload)} bytes; its header says {size}")
    if _checksum(kind, model, name, payload) != checksum:
        raise BlobError("checksum", f"the payload of {name.hex()} is not what was written")
    return payload


def _checksum(kind: Kind, model: bytes, name: bytes, payload: Bytes) -> bytes:
    return digest(bytes([kind]), model, name, memoryview(payload))  # type: ignore[arg-type]


def pack(meta: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]]) -> Bytes:
    """JSON and arrays as one payload."""
    described = {**meta, "arrays": [[a.dtype.str, list(a.shape)] for a in arrays]}
    text = json.dumps(described, separators=(",", ":")).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def unpack(payload: Bytes) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """What `pack` was given; arrays own their memory.

    Raises:
        BlobError: the payload is not one of `pack`'s.
    """
    try:
        raw = payload.tobytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        meta = json.loads(raw[8:start])
        arrays = []
        for kind, shape in meta.pop("arrays"):
            count = int(np.prod(shape, dtype=np.int64))
            made = np.frombuffer(raw, dtype=kind, count=count, offset=start).reshape(shape).copy()
            arrays.append(made)
            start += made.nbytes
        return meta, arrays
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BlobError("content", f"a payload of {len(payload)} bytes cannot be read: {error}") from error
