"""A mirror: one member's context as references into masters plus the rows that are its own.

It is what a member's pages held, bit for bit: referenced rows are re-made by the function that made them, from the
same bytes; stored rows are copied. Nothing is materialised until `restore.Work` is asked for a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import BLOCK, BlockIndex
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Mirror:
    """One member's KV.

    Attributes:
        tokens: ids of the tokens whose KV this is, int32 [n].
        positions: at which position each of them was computed.
        references: tokens that are rows of a master.
        index: the other tokens, stored here as computed (frame `at` their own position).
        parts: the values of `index`, in its order; a round adds a part and leaves the others as they are.
        approximate_from: first token whose KV is not what a full prefill would give, or None.
    """

    tokens: Tokens
    positions: Positions
    references: References
    index: BlockIndex
    parts: tuple[Rows, ...]
    approximate_from: int | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def index_bytes(self) -> int:
        """Bytes of everything but KV rows."""
        return self.tokens.nbytes + self.positions.nbytes + self.references.nbytes + self.index.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of this mirror alone; the segments that it references are the family's."""
        return self.index_bytes + sum(part.nbytes for part in self.parts)

    @property
    def blocks(self) -> int:
        """Storage blocks that its tokens fill."""
        return -(-len(self.tokens) // BLOCK)

    def matching(self, prompt: Tokens) -> int:
        """Leading tokens that this mirror and a prompt have in common."""
        size = min(len(self.tokens), len(prompt))
        other = np.flatnonzero(self.tokens[:size] != prompt[:size])
        return int(other[0]) if len(other) else size

    def head(self, size: int) -> Mirror:
        """Its first tokens; whole parts are shared, a cut one is copied.

        Tokens at or after `size` are forgotten. A size of the whole mirror or more gives the mirror itself.
        """
        if size >= len(self.tokens):
            return self
        flags = np.arange(len(self.tokens)) < size
        stored = self.index.flags(len(self.tokens))[:size]
        parts, left = [], int(stored.sum())
        for part in self.parts:
            if left:
                parts.append(part if len(part) <= left else part.head(left))
                left -= len(parts[-1])
        steps = self.positions.steps
        approximate = self.approximate_from
        return Mirror(
            self.tokens[:size].copy(),
            Positions(steps[(steps[:, 0] < size) | (steps[:, 0] == 0)].copy()),
            self.references.keep(flags),
            BlockIndex.of(stored),
            tuple(parts),
            approximate if approximate is not None and approximate < size else None,
        )

    def check(self) -> None:
        """Raise AssertionError unless references and stored rows divide the tokens between them."""
        self.index.check()
        self.references.check()
        size = len(self.tokens)
        assert self.tokens.dtype == np.int32
        stored, referenced = self.index.flags(size), self.references.flags(size)
        assert bool((stored ^ referenced).all()), "a token is both stored and referenced, or neither"
        assert sum(len(part) for part in self.parts) == self.index.rows, "parts do not hold the index's rows"
        assert all(len(part) for part in self.parts), "an empty part"
        tokens, which, rows = self.references.expand()
        for i, segment in enumerate(self.references.segments):
            mine = which == i
            assert np.array_equal(segment.tokens[rows[mine]], self.tokens[tokens[mine]]), (
                "a foreign reference"
            )
