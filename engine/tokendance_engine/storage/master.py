"""A master in storage: the shared transcript as ordered segments, each captured once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Index, expand
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.keys import context_after
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Master:
    """Rows [0, len) of one transcript. Rows that nobody references need not be stored.

    Attributes:
        id: the engine's name for the computation that made these rows; another id is other bytes.
        tokens: ids of all rows, int32 [rows].
        segments: stored rows, in order.
        starts: first row of each segment.
        context: id of all rows: what the next one is computed after.
    """

    id: int
    tokens: Tokens
    segments: tuple[Segment, ...] = ()
    starts: tuple[int, ...] = ()
    context: bytes = b""

    @classmethod
    def empty(cls, master_id: int) -> Master:
        """No rows yet."""
        return cls(master_id, np.zeros(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def stored(self) -> int:
        """Rows that are stored."""
        return sum(len(segment) for segment in self.segments)

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
        longer = self.skipping(segment.tokens, segment.first)
        return replace(longer, segments=(*self.segments, segment), starts=(*self.starts, len(self)))

    def skipping(self, tokens: Tokens, first: int) -> Master:
        """More rows that are not stored, the first at position `first`."""
        return replace(
            self,
            tokens=np.concatenate([self.tokens, tokens]).astype(np.int32),
            context=context_after(self.context, first, tokens),
        )

    def check(self) -> None:
        """Raise AssertionError unless segments lie in order at their rows and hold these tokens."""
        assert len(self.starts) == len(self.segments)
        end = 0
        for start, segment in zip(self.starts, self.segments, strict=True):
            assert start >= end, f"a segment at row {start}; the one before ends at {end}"
            end = start + len(segment)
            assert np.array_equal(self.tokens[start:end], segment.tokens), "a foreign segment"

    def locate(self, spans: Index, size: int) -> References:
        """References for what a plan took from this master.

        Args:
            spans: int64 [n, 3]: master row, token of the member, length; disjoint in tokens.
            size: tokens of the member; what lies beyond is left out, as are rows this master does not hold.

        Returns:
            References in token order.
        """
        rows, tokens = expand(spans[:, 0], spans[:, 2]), expand(spans[:, 1], spans[:, 2])
        starts = np.array(self.starts, dtype=np.int64)
        ends = starts + np.array([len(segment) for segment in self.segments], dtype=np.int64)
        which = np.searchsorted(starts, rows, side="right") - 1
        inside = (which >= 0) & (tokens < size)
        inside[inside] = rows[inside] < ends[which[inside]]
        order = np.flatnonzero(inside)[np.argsort(tokens[inside], kind="stable")]
        rows, tokens, which = rows[order], tokens[order], which[order]
        return References.of(tokens, which, rows - starts[which], self.segments)
