"""Benign tokens that bring a context to a page boundary before a shared region.

A context with fillers has two coordinates: the user's (without them) and the filled one, in which pages are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendance_engine.segments.key import Segment, Tokens


@dataclass(frozen=True, slots=True)
class Filling:
    """Where fillers stand.

    Attributes:
        inserts: (filled index of the first filler, how many), ascending.
    """

    inserts: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """All fillers."""
        return sum(n for _, n in self.inserts)

    def to_user(self, index: int) -> int:
        """The user's coordinate of a filled index that is no filler."""
        return index - sum(n for at, n in self.inserts if at < index)

    def before(self, index: int) -> Filling:
        """Only the inserts that begin before a filled index."""
        return Filling(tuple((at, n) for at, n in self.inserts if at < index))

    def plus(self, index: int, count: int) -> Filling:
        """With `count` more fillers at a filled index beyond all others."""
        return Filling((*self.inserts, (index, count))) if count else self

    def usable(self, common: int) -> Filling:
        """The inserts after which a context that shares `common` user tokens still has a common token."""
        return Filling(tuple((at, n) for at, n in self.inserts if self.to_user(at) < common))


UNFILLED = Filling()
"""No fillers."""


def fill(tokens: Tokens, filling: Filling, filler: int) -> Tokens:
    """A user's tokens with fillers, int32 [n + filling.count]."""
    parts, start, before = [], 0, 0
    for at, n in filling.inserts:
        parts += [tokens[start : at - before], np.full(n, filler, dtype=np.int32)]
        start, before = at - before, before + n
    return np.concatenate([*parts, tokens[start:]]).astype(np.int32)


def strip(tokens: Tokens, filling: Filling) -> Tokens:
    """The tokens without their fillers."""
    keep = np.ones(len(tokens), dtype=bool)
    for at, n in filling.inserts:
        keep[at : at + n] = False
    kept: Tokens = tokens[keep]
    return kept


def moved(segments: Sequence[Segment], filling: Filling) -> list[Segment]:
    """Segments of the user's prompt at their filled offsets; fillers before a segment are not part of it."""
    if not filling.inserts:
        return list(segments)
    result = []
    for segment in segments:
        shift = 0
        for at, n in filling.inserts:
            if segment.start + shift >= at:
                shift += n
        end = shift
        for at, n in filling.inserts:
            if segment.start + shift < at < segment.end + end:
                end += n
        result.append(Segment(segment.start + shift, segment.end + end, segment.key))
    return result
