"""A mirror or a master as a small document that names its rows, so that rows are written once and shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokendance_engine.storage.blocks import BlockIndex
from tokendance_engine.storage.codec import Bytes, pack, unpack
from tokendance_engine.storage.errors import BlobError
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import Rows, Segment

NameOf = Callable[[Rows], bytes]
RowsOf = Callable[[bytes, int], Rows]
"""(name, rows) -> the rows under that name."""

SegmentOf = Callable[[Segment], Segment]
"""The segment to use for one just read: one that is already in memory, say."""


@dataclass(frozen=True, slots=True)
class Need:
    """Rows that a manifest names.

    Attributes:
        shared: they are a segment's, which other manifests may name too.
    """

    name: bytes
    rows: int
    shared: bool


def _segments(segments: tuple[Segment, ...], name_of: NameOf) -> list[list[object]]:
    return [[name_of(s.rows).hex(), s.first, s.context.hex()] for s in segments]


def mirror_manifest(mirror: Mirror, name_of: NameOf) -> Bytes:
    """A mirror without its rows."""
    meta = {
        "approximate_from": mirror.approximate_from,
        "parts": [[name_of(part).hex(), len(part)] for part in mirror.parts],
        "segments": _segments(mirror.references.segments, name_of),
    }
    index = mirror.index
    runs = mirror.references.runs
    arrays = (mirror.tokens, mirror.positions.steps, runs, index.blocks, index.masks)
    return pack(meta, [*arrays, *(s.tokens for s in mirror.references.segments)])


def master_manifest(master: Master, name_of: NameOf) -> Bytes:
    """A master without its rows."""
    meta = {"parts": [], "segments": _segments(master.segments, name_of), "context": master.context.hex()}
    starts = np.array(master.starts, dtype=np.int64)
    return pack(meta, [master.tokens, starts, *(s.tokens for s in master.segments)])


def needs(payload: Bytes) -> list[Need]:
    """The rows that a manifest names, each once.

    Raises:
        BlobError: it is no manifest.
    """
    meta, arrays = unpack(payload)
    try:
        tokens = arrays[len(arrays) - len(meta["segments"]) :]
        named = {name: Need(bytes.fromhex(name), int(rows), False) for name, rows in meta["parts"]}
        for (name, _, _), ids in zip(meta["segments"], tokens, strict=True):
            named[name] = Need(bytes.fromhex(name), len(ids), True)
        return list(named.values())
    except (KeyError, TypeError, ValueError) as error:
        raise BlobError("content", f"not a manifest: {error}") from error


def read_mirror(payload: Bytes, rows_of: RowsOf, segment_of: SegmentOf) -> Mirror:
    """A mirror again.

    Args:
        rows_of: finds rows.
        segment_of: the segment to use for one just read (one that is already in memory, say).

    Raises:
        BlobError: it is no manifest of a mirror.
    """
    meta, arrays = unpack(payload)
    try:
        tokens, steps, runs, blocks, masks = arrays[:5]
        segments = tuple(
            segment_of(Segment(ids, first, bytes.fromhex(context), rows_of(bytes.fromhex(name), len(ids))))
            for (name, first, context), ids in zip(meta["segments"], arrays[5:], strict=True)
        )
        mirror = Mirror(
            tokens.astype(np.int32),
            Positions(steps),
            References(runs, segments),
            BlockIndex(blocks, masks),
            tuple(rows_of(bytes.fromhex(name), rows) for name, rows in meta["parts"]),
            meta["approximate_from"],
        )
        mirror.check()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise BlobError("content", f"not the manifest of a mirror: {error}") from error
    return mirror


def read_master(payload: Bytes, rows_of: RowsOf, segment_of: SegmentOf) -> Master:
    """A master again, with id -1: rows of no computation that the engine knows.

    Raises:
        BlobError: it is no manifest of a master.
    """
    meta, arrays = unpack(payload)
    try:
        segments = tuple(
            segment_of(Segment(ids, first, bytes.fromhex(context), rows_of(bytes.fromhex(name), len(ids))))
            for (name, first, context), ids in zip(meta["segments"], arrays[2:], strict=True)
        )
        starts = tuple(int(start) for start in arrays[1])
        master = Master(-1, arrays[0], segments, starts, bytes.fromhex(meta["context"]))
        master.check()
    except (IndexError, KeyError, TypeError, ValueError, AssertionError) as error:
        raise BlobError("content", f"not the manifest of a master: {error}") from error
    return master
