"""The plan of one member: for every prompt token, where its KV comes from.

Spans are `cached` (already in pages), `reused` (restored from a master), or computed: `fresh` (nobody has them) and
selected (restored, then computed anyway). The prompt's last token always stays for vLLM, which needs its logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.reuse.backends import Backend
from tokendance_engine.reuse.selection import Mask, Reused

Runs = npt.NDArray[np.int64]
"""Contiguous runs [start, end), shape [n, 2]."""

Spans = npt.NDArray[np.int64]
"""Restores (master row, prompt position, length), shape [n, 3]."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one member.

    Attributes:
        cached: tokens vLLM already holds; everything below is at or after this offset.
        end: tokens [cached, end) are promised to vLLM; `end` is the prompt length minus one.
        restore: master rows to write into the member's pages; selected positions are left out, since they are
            computed anyway.
        compute: runs to compute in the virtual batch, fresh and selected.
        reused, selected, fresh: token counts.
        approximate_from: first position whose KV is not what a full prefill would give; None if none is.
    """

    cached: int
    end: int
    restore: Spans
    compute: Runs
    reused: int
    selected: int
    fresh: int
    approximate_from: int | None

    @property
    def promised(self) -> int:
        """Tokens vLLM may count as computed beyond its own cache."""
        return self.end - self.cached

    @property
    def computed(self) -> int:
        """Tokens the virtual batch computes."""
        return self.selected + self.fresh


def runs_of(mask: Mask) -> Runs:
    """Contiguous True runs of a mask, as [n, 2]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return edges.reshape(-1, 2)


def make_plan(size: int, cached: int, found: Sequence[Reused], backend: Backend, tail: int) -> Plan:
    """Plan one member.

    Args:
        size: prompt length.
        cached: tokens vLLM's prefix cache holds (a multiple of the page size).
        found: segments the master holds, ascending and disjoint.
        backend: decides what is recomputed.
        tail: the last `tail` tokens of the last reused segment, and all after them, are computed.
    """
    end = size - 1
    row_of = np.full(size, -1, dtype=np.int64)
    for segment in found:
        row_of[segment.start : segment.end] = np.arange(
            segment.row, segment.row + segment.end - segment.start
        )
    if found:
        row_of[max(found[-1].start, found[-1].end - tail) :] = -1
    selected = backend.select(found, size) & (row_of >= 0)
    inside = np.zeros(size, dtype=bool)
    inside[cached:end] = True
    reused = inside & (row_of >= 0) & ~selected
    selected &= inside
    fresh = inside & (row_of < 0)
    restore = [
        (row_of[a], a, b - a)
        for start, stop in runs_of(reused)
        for a, b in _consecutive(row_of, int(start), int(stop))
    ]
    first = np.flatnonzero(reused)
    return Plan(
        cached=cached,
        end=end,
        restore=np.array(restore, dtype=np.int64).reshape(-1, 3),
        compute=runs_of(selected | fresh),
        reused=int(reused.sum()),
        selected=int(selected.sum()),
        fresh=int(fresh.sum()),
        approximate_from=int(first[0]) if len(first) else None,
    )


def _consecutive(row_of: npt.NDArray[np.int64], start: int, stop: int) -> list[tuple[int, int]]:
    """Split [start, stop) where master rows jump."""
    cuts = np.flatnonzero(np.diff(row_of[start:stop]) != 1) + start + 1
    edges = [start, *cuts.tolist(), stop]
    return list(itertools.pairwise(edges))
