"""A master in storage: the shared transcript as ordered segments, each captured once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Index, expand
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.keys import context_after
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import Segment


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
