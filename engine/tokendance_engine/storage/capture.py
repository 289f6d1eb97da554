"""Making a mirror from what a member's pages hold and from what its plan took from a master."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import BlockIndex, Flags, Index
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.restore import Remake
from tokendance_engine.storage.rows import ReadRows, Rows, bits, read_rows

MAX_PARTS = 16
"""Beyond this many parts a mirror's smallest neighbours are joined, so that a long session restores in few pieces."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a member's pages hold at the end of a request.

    Attributes:
        tokens: ids of all tokens whose KV is there, int32 [n] (the last generated token has none).
        references: tokens at or after `same` that were written from a master and not computed again.
        positions: where the tokens stand.
        same: leading tokens whose KV is bit for bit what the member's previous mirror holds (they were still in
            pages, or were restored from it); 0 without one.
        approximate_from: first token whose KV is not what a full prefill would give, or None.
    """

    tokens: Tokens
    references: References
    positions: Positions
    same: int = 0
    approximate_from: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A mirror of which only the rows are missing.

    Attributes:
        base: what is kept of the previous mirror, if anything.
        references: of the new tokens.
        own: new tokens whose rows are to be read, ascending, int64 [n].
    """

    layout: Layout
    content: Content
    base: Mirror | None
    references: References
    own: Index

    @property
    def nbytes(self) -> int:
        """Most bytes that `read` allocates."""
        rows = len(self.own)
        size = len(self.content.tokens)
        if self.base is not None and len(self.base.parts) + bool(rows) > MAX_PARTS:
            rows += rows + sum(len(part) for part in self.base.parts)
        index = 4 * size + 6 * (size // 16 + 1) + self.content.positions.nbytes
        index += self.references.nbytes + (self.base.references.nbytes if self.base else 0)
        return rows * self.layout.row_bytes + index

    def read(self, read: ReadRows) -> Mirror:
        """Read the missing rows, one call per layer, and finish the mirror."""
        size = len(self.content.tokens)
        own = np.zeros(size, dtype=bool)
        own[self.own] = True
        parts: tuple[Rows, ...] = (read_rows(self.layout, read, self.own),) if len(self.own) else ()
        references = self.references
        if self.base is not None:
            own |= self.base.index.flags(size)
            references = self.base.references.then(references)
            parts = self.base.parts + parts
        return Mirror(
            self.content.tokens,
            self.content.positions,
            references,
            BlockIndex.of(own),
            joined(parts),
            self.content.approximate_from,
        )


def draft(
    layout: Layout,
    content: Content,
    previous: Mirror | None = None,
    dense_above: float = 0.96,
) -> Draft:
    """Decide what a mirror references and what it stores.

    Args:
        previous: the member's mirror so far; what it holds of the first `content.same` tokens is not read again.
        dense_above: if a larger share of the new tokens would be stored, all of them are: nothing to look up.

    Raises:
        ShapeError: `same` exceeds the previous mirror, or it has other tokens there.
    """
    base, begin = None, content.same
    if begin:
        held = previous.matching(content.tokens) if previous is not None else 0
        if previous is None or held < begin:
            raise ShapeError(
                f"{begin} tokens are said to be stored already; the previous mirror has {held} of them"
            )
        base = previous.head(begin)
    size = len(content.tokens)
    new = np.arange(size) >= begin
    references = content.references.keep(new)
    own = new & ~references.flags(size)
    if own.sum() > dense_above * (size - begin):
        references, own = References.none(), new
    return Draft(layout, content, base, references, np.flatnonzero(own))


def confirmed(layout: Layout, content: Content, read: ReadRows, remake: Remake) -> References:
    """The references that re-make the very bytes in the pages, in all layers.

    What they rest on (a plan, or token similarity alone) does not matter then. One call of `read` per layer; holds
    one layer's rows at a time.
    """
    references = content.references.keep(np.arange(len(content.tokens)) >= content.same)
    tokens, which, rows = references.expand()
    other = np.zeros(len(tokens), dtype=bool)
    groups = [np.flatnonzero(which == i) for i in range(len(references.segments))]
    new = content.positions.at(tokens)
    for layer in range(layout.layers if len(tokens) else 0):
        key, value = (plane.to("cpu") for plane in read(layer, tokens))
        for mine, segment in zip(groups, references.segments, strict=True):
            source = torch.from_numpy(rows[mine])
            old_key, old_value = (plane.index_select(0, source) for plane in segment.rows.layer(layer))
            made = remake(layer, old_key, segment.first + rows[mine], new[mine])
            at = torch.from_numpy(mine)
            other[mine] |= (different(made, key[at]) | different(old_value, value[at])).numpy()
    keep: Flags = np.zeros(len(content.tokens), dtype=bool)
    keep[tokens[~other]] = True
    return references.keep(keep)


def different(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows that differ in any bit, bool [n]; a and b are [n, heads, dim]."""
    return (bits(a) != bits(b)).flatten(1).any(1)


def joined(parts: tuple[Rows, ...]) -> tuple[Rows, ...]:
    """At most `MAX_PARTS` parts: small neighbours are joined, so that a row is copied rarely, not every round."""
    kept = list(parts)
    while len(kept) > MAX_PARTS:
        sizes = [len(a) + len(b) for a, b in itertools.pairwise(kept)]
        i = int(np.argmin(sizes))
        kept[i : i + 2] = [Rows(torch.cat([kept[i].kv, kept[i + 1].kv], dim=2))]
    return tuple(kept)
