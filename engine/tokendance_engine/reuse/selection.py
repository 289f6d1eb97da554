"""Which reused positions to compute anyway.

It is the start of every block that pays: those tokens had nothing but other blocks before them in the master and
have a private history before them in the member. A label is a segment of its own but no block of its own, so short
segments share the budget with the block that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.segments.key import Segment

Mask = npt.NDArray[np.bool_]
"""One flag per prompt position, shape [n]."""

SHORT = 16
"""Segments up to this many tokens count as the head of the segment right after them."""


@dataclass(frozen=True, slots=True)
class Reused:
    """A segment of the prompt that a master holds: prompt tokens [start, end) are master rows from `row` on."""

    start: int
    end: int
    row: int


def reused(segments: Sequence[Segment], rows: Sequence[int | None]) -> list[Reused]:
    """Pair segments with their master rows, leaving out those the master does not hold."""
    return [Reused(s.start, s.end, row) for s, row in zip(segments, rows, strict=True) if row is not None]


def blocks(found: Sequence[Reused]) -> int:
    """How many blocks reused segments (ascending) make: a label counts as part of the block that follows."""
    return len(found) - sum(_glued(a, b) for a, b in itertools.pairwise(found))


def first_of_each(found: Sequence[Reused], k: int, size: int) -> Mask:
    """Mark the first k tokens of each block.

    Args:
        found: reused segments, ascending.
        k: budget per block.
        size: prompt length.

    Returns:
        bool [size], True where a reused position is to be computed anyway.
    """
    marked = np.zeros(size, dtype=bool)
    left, previous = 0, None
    for segment in found:
        if previous is None or not _glued(previous, segment):
            left = k
        take = min(left, segment.end - segment.start)
        marked[segment.start : segment.start + take] = True
        left -= take
        previous = segment
    return marked


def _glued(previous: Reused, segment: Reused) -> bool:
    return previous.end == segment.start and previous.end - previous.start <= SHORT
