"""How a master grows: which new rows become segments, and which are only remembered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Flags
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.rows import ReadRows, Segment, read_rows, same_bits


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, end) of a transcript: one segment if `stored`."""

    start: int
    end: int
    stored: bool


def begins(tokens: Tokens, master: Master) -> bool:
    """Whether a transcript begins with all of a master's rows."""
    return np.array_equal(tokens[: len(master)], master.tokens)


def pieces(
    start: int, end: int, positions: Positions, cuts: Sequence[int], keep: Flags | None
) -> list[Piece]:
    """Rows [start, end) as runs that become segments or are left out.

    Cut where asked, where positions jump, and where `keep` (one flag per row) changes.
    """
    changes = (
        np.flatnonzero(np.diff(keep.astype(np.int8))) + 1 if keep is not None else np.zeros(0, dtype=int)
    )
    inner = {*cuts, *positions.steps[:, 0].tolist(), *changes.tolist()}
    edges = itertools.pairwise(sorted({start, end, *(cut for cut in inner if start < cut < end)}))
    return [Piece(a, b, keep is None or bool(keep[a])) for a, b in edges]


def grown(
    master: Master,
    tokens: Tokens,
    positions: Positions,
    parts: Sequence[Piece],
    fits: Callable[[int], bool],
    make: Callable[[Master, Tokens], Segment],
) -> Master:
    """A master with as many more pieces as there is room for.

    Args:
        tokens: ids of all rows.
        fits: whether so many rows in all can be stored; asked before they are read.
        make: the segment for the next rows after a master.
    """
    rows = 0
    for piece in parts:
        new = tokens[piece.start : piece.end]
        if not piece.stored:
            master = master.skipping(new, int(positions.at(np.array([piece.start]))[0]))
            continue
        rows += len(new)
        if not fits(rows):
            break
        master = master.extended(make(master, new))
    return master


def read_segment(
    layout: Layout, master: Master, tokens: Tokens, positions: Positions, read: ReadRows
) -> Segment:
    """The rows after a master's last one, from its pages.

    Args:
        tokens: ids of the new rows, int32 [n]; their positions have no jump.
        positions: of all rows.
        read: reads master rows by number.
    """
    row = len(master)
    first = int(positions.at(np.array([row]))[0])
    ids = np.ascontiguousarray(tokens, dtype=np.int32).copy()
    return Segment(ids, first, master.context, read_rows(layout, read, np.arange(row, row + len(ids))))


def same_segment(a: Segment, b: Segment) -> bool:
    """Whether two segments are the same text and the same bytes."""
    return np.array_equal(a.tokens, b.tokens) and a.first == b.first and same_bits(a.rows, b.rows)
