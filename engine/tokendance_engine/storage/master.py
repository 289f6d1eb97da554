"""A master in storage: the shared transcript as ordered segments, each captured once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Index, expand
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.keys import context_after
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import ReadRows, Segment, read_rows, same_bits


@dataclass(frozen=True, slots=True, eq=False)
class Master:
    """Rows [0, len) of one transcript.

    Attributes:
        id: the engine's name for the computation that made these rows; another id is other bytes.
        segments: in order, contiguous.
        context: id of the whole of them: what the next segment is computed after.
    """

    id: int
    segments: tuple[Segment, ...] = ()
    context: bytes = b""

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def tokens(self) -> Tokens:
        """Ids of all rows, int32 [rows]."""
        empty = np.zeros(0, dtype=np.int32)
        return np.concatenate([empty, *(segment.tokens for segment in self.segments)])

    def extended(self, segment: Segment) -> Master:
        """One more segment after the last row.

        Raises:
            ShapeError: it was computed after something else.
        """
        if segment.context != self.context:
            raise ShapeError(
                f"a segment computed after {segment.context.hex() or 'nothing'}; "
                f"this master ends in {self.context.hex() or 'nothing'}"
            )
        after = context_after(segment.context, segment.first, segment.tokens)
        return Master(self.id, (*self.segments, segment), after)

    def locate(self, spans: Index, size: int) -> References:
        """References for what a plan took from this master.

        Args:
            spans: int64 [n, 3]: master row, token of the member, length; disjoint in tokens.
            size: tokens of the member; what lies beyond is left out, as are rows this master does not hold.

        Returns:
            References in token order.
        """
        rows, tokens = expand(spans[:, 0], spans[:, 2]), expand(spans[:, 1], spans[:, 2])
        inside = (rows < len(self)) & (tokens < size)
        rows, tokens = rows[inside], tokens[inside]
        order = np.argsort(tokens, kind="stable")
        rows, tokens = rows[order], tokens[order]
        starts = np.cumsum([0, *(len(segment) for segment in self.segments)])
        which = np.searchsorted(starts, rows, side="right") - 1
        return References.of(tokens, which, rows - starts[which], self.segments)


def begins(tokens: Tokens, master: Master) -> bool:
    """Whether a transcript begins with all of a master's rows."""
    return np.array_equal(tokens[: len(master)], master.tokens())


def pieces(start: int, end: int, positions: Positions, cuts: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Rows [start, end) as runs that become segments: cut where asked, and where positions jump."""
    inner = {*cuts, *positions.steps[:, 0].tolist()}
    return itertools.pairwise(sorted({start, end, *(cut for cut in inner if start < cut < end)}))


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
