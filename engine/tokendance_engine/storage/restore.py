"""What to write to bring a mirror's tokens back, and a plain executor of it.

`Work` is indices only, the same for all layers. An engine walks the layers and hands each to its own kernel; the
kernel that re-makes referenced keys must be the one that made them, which is what makes a restore bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokendance_engine.kernels.rope import RopeTable, rotate
from tokendance_engine.storage.blocks import Index
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.rows import Rows, Segment

Remake = Callable[[int, torch.Tensor, Index, Index], torch.Tensor]
"""(layer, keys [n, heads, dim], old positions, new positions, int64 [n] each) -> keys [n, heads, dim] as the engine's
restore writes them. Where no position changes it must return the very bytes it was given."""


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Rows of one segment to write at other positions.

    Attributes:
        segment: the source.
        rows: rows of it, int64 [n].
        old, new: positions its keys stand at and must stand at, int64 [n]; equal where the master's own place is
            the member's.
        tokens: the member's tokens to write, int64 [n].
    """

    segment: Segment
    rows: Index
    old: Index
    new: Index
    tokens: Index

    @property
    def rotates(self) -> bool:
        """Whether any key moves."""
        return bool((self.old != self.new).any())


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Stored rows [first, first + len(tokens)) of one part to write as they are.

    Attributes:
        part: the source.
        first: its first row to copy; the others follow.
        tokens: the member's tokens to write, int64 [n].
    """

    part: Rows
    first: int
    tokens: Index

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, [n, heads, dim] each, without a copy."""
        end = self.first + len(self.tokens)
        key, value = self.part.layer(layer)
        return key[self.first : end], value[self.first : end]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """How to restore tokens [start, end) of a mirror; every token is in exactly one gather or copy."""

    start: int
    end: int
    gathers: tuple[Gather, ...]
    copies: tuple[Copy, ...]

    @classmethod
    def of(cls, mirror: Mirror, start: int, end: int) -> Work:
        """Plan the restore of tokens [start, end)."""
        end = min(end, len(mirror))
        return cls(start, end, tuple(_gathers(mirror, start, end)), tuple(_copies(mirror, start, end)))

    @property
    def tokens(self) -> int:
        return self.end - self.start


def _gathers(mirror: Mirror, start: int, end: int) -> Iterator[Gather]:
    tokens, which, rows = mirror.references.expand()
    wanted = (tokens >= start) & (tokens < end)
    tokens, which, rows = tokens[wanted], which[wanted], rows[wanted]
    # Grouped by segment: one gather each, however many runs point into it.
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(len(mirror.references.segments) + 1))
    for i, segment in enumerate(mirror.references.segments):
        mine = order[edges[i] : edges[i + 1]]
        if len(mine):
            new = mirror.positions.at(tokens[mine])
            yield Gather(segment, rows[mine], segment.first + rows[mine], new, tokens[mine])


def _copies(mirror: Mirror, start: int, end: int) -> Iterator[Copy]:
    tokens = mirror.index.tokens()
    low, high = np.searchsorted(tokens, [start, end])
    before = 0
    for part in mirror.parts:
        first, last = max(int(low), before), min(int(high), before + len(part))
        if first < last:
            yield Copy(part, first - before, tokens[first:last])
        before += len(part)


def remake_with(ropes: Sequence[RopeTable | None]) -> Remake:
    """Re-make keys by the torch rotation.

    Args:
        ropes: one per layer; None for a layer whose keys do not rotate.
    """

    def remake(layer: int, keys: torch.Tensor, old: Index, new: Index) -> torch.Tensor:
        rope = ropes[layer]
        if rope is None or np.array_equal(old, new):
            return keys
        cos, sin = rope.difference(torch.from_numpy(old), torch.from_numpy(new))
        moved = rotate(keys, cos, sin, neox=rope.neox)
        stays = torch.from_numpy(old == new)
        return torch.where(stays[:, None, None], keys, moved)

    return remake


def materialise(work: Work, layer: int, remake: Remake) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense K and V of one layer, [tokens, heads, dim] each: what a kernel writes into pages."""
    sources = [g.segment.rows for g in work.gathers] + [c.part for c in work.copies]
    _, _, _, heads, dim = sources[0].kv.shape
    out = torch.empty(2, work.tokens, heads, dim, dtype=sources[0].kv.dtype)
    for gather in work.gathers:
        rows, at = torch.from_numpy(gather.rows), torch.from_numpy(gather.tokens - work.start)
        key, value = (plane.index_select(0, rows) for plane in gather.segment.rows.layer(layer))
        out[0, at] = remake(layer, key, gather.old, gather.new)
        out[1, at] = value
    for copy in work.copies:
        at = torch.from_numpy(copy.tokens - work.start)
        out[0, at], out[1, at] = copy.layer(layer)
    return out[0], out[1]
