"""The plan of one member: for every prompt token up to the end of what is shared, where its KV comes from.

Tokens are `cached` (already in pages), `reused` (from a master), or computed: `fresh` (nobody has them) and selected
(reused, then computed anyway). A page whose every token is reused, from one page of the master, at the master's own
positions, is not copied at all: the member's page table points to it. Plans cover whole pages; what follows, at least
the prompt's last token, is left to vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.reuse.backends import Backend
from tokendance_engine.reuse.selection import Mask, Reused
from tokendance_engine.segments.filling import UNFILLED, Filling
from tokendance_engine.segments.frame import IN_PLACE, Frame, Indices

Runs = npt.NDArray[np.int64]
"""Contiguous runs [start, end), shape [n, 2]."""

Spans = npt.NDArray[np.int64]
"""Restores (master row, prompt index, length), shape [n, 3]."""

SharedPages = npt.NDArray[np.int64]
"""(index in the member's page table, index in the master's), shape [n, 2]."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one member.

    Attributes:
        cached: tokens vLLM already holds; everything below is at or after this index.
        end: the plan covers tokens [cached, end); both are multiples of the page size.
        shared: pages of the master that stand in the member's page table.
        restore: master rows to write into the member's own pages; selected tokens are left out, since they are
            computed anyway.
        compute: runs to compute in the virtual batch, fresh and selected.
        reused, selected, fresh: token counts.
        approximate_from: first index whose KV is not what a full prefill would give; None if none is.
    """

    cached: int
    end: int
    shared: SharedPages
    restore: Spans
    compute: Runs
    reused: int
    selected: int
    fresh: int
    approximate_from: int | None

    @property
    def computed(self) -> int:
        """Tokens the virtual batch computes."""
        return self.selected + self.fresh

    def private_pages(self, page_size: int) -> npt.NDArray[np.int64]:
        """Indices of the pages the member needs for itself, int64 [n]."""
        return np.setdiff1d(
            np.arange(self.cached // page_size, self.end // page_size), self.shared[:, 0], assume_unique=True
        )


@dataclass(frozen=True, slots=True)
class Context:
    """A member's prompt as the planner sees it.

    Attributes:
        size: prompt length.
        cached: tokens vLLM's prefix cache holds, a multiple of `page_size`.
        frame: where its tokens stand.
        master: where the master's rows stand.
        share: whether pages of the master may stand in its page table.
        filling: its fillers.
    """

    size: int
    cached: int
    page_size: int
    frame: Frame = IN_PLACE
    master: Frame = IN_PLACE
    share: bool = True
    filling: Filling = UNFILLED


def runs_of(mask: Mask) -> Runs:
    """Contiguous True runs of a mask, as [n, 2]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return edges.reshape(-1, 2)


def make_plan(context: Context, found: Sequence[Reused], backend: Backend, tail: int) -> Plan:
    """Plan one member.

    Args:
        context: its prompt.
        found: segments the master holds, ascending and disjoint.
        backend: decides what is recomputed.
        tail: the last `tail` tokens of the last reused segment, and all after them, are computed by vLLM.
    """
    size, cached = context.size, context.cached
    row_of = np.full(size, -1, dtype=np.int64)
    for segment in found:
        row_of[segment.start : segment.end] = np.arange(
            segment.row, segment.row + segment.end - segment.start
        )
    if found:
        row_of[max(found[-1].start, found[-1].end - tail) :] = -1
    held = row_of >= 0
    end = _end(context, held)
    inside = np.zeros(size, dtype=bool)
    inside[cached:end] = True
    selected = backend.select(found, size) & held & inside
    reused = held & inside & ~selected
    fresh = inside & ~held
    shared = _shared_pages(context, end, row_of, reused)
    own = reused.copy()
    if len(shared):
        own[cached:end].reshape(-1, context.page_size)[shared[:, 0] - cached // context.page_size] = False
    first = np.flatnonzero(reused)
    moved = [at for at, _ in context.frame.steps if at >= cached]
    moved += [max(at, cached) for at, n in context.filling.inserts if at + n > cached]
    return Plan(
        cached=cached,
        end=end,
        shared=shared,
        restore=_restores(context, row_of, np.flatnonzero(own)),
        compute=runs_of(selected | fresh),
        reused=int(reused.sum()),
        selected=int(selected.sum()),
        fresh=int(fresh.sum()),
        approximate_from=min([int(i) for i in first[:1]] + moved, default=None),
    )


def _end(context: Context, held: Mask) -> int:
    """Where the plan ends: after the page of the last held token if at least half of that page is held."""
    size = context.page_size
    last = int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0
    down = last // size * size
    end = down + size if last - down >= size / 2 else down
    return max(context.cached, min(end, (context.size - 1) // size * size))


def _shared_pages(context: Context, end: int, row_of: Indices, reused: Mask) -> SharedPages:
    size, cached = context.page_size, context.cached
    if not context.share or end <= cached:
        return np.zeros((0, 2), dtype=np.int64)
    index = np.arange(cached, end)
    rows = row_of[cached:end].reshape(-1, size)
    first = rows[:, :1]
    same_place = context.frame.at(index).reshape(-1, size) == context.master.at(rows.ravel()).reshape(
        -1, size
    )
    fits = (
        reused[cached:end].reshape(-1, size).all(axis=1)
        & (first[:, 0] % size == 0)
        & (rows == first + np.arange(size)).all(axis=1)
        & same_place.all(axis=1)
    )
    pages = np.flatnonzero(fits)
    return np.stack([pages + cached // size, first[pages, 0] // size], axis=1)


def _restores(context: Context, row_of: Indices, own: Indices) -> Indices:
    """Restores (row, index, length) of the tokens `own`, int64 [n, 3].

    Cut where indices or master rows jump, or the difference of positions that their keys are rotated by.
    """
    if not len(own):
        return np.zeros((0, 3), dtype=np.int64)
    rows = row_of[own]
    turn = context.frame.at(own) - context.master.at(rows)
    jumps = (np.diff(own) != 1) | (np.diff(rows) != 1) | (np.diff(turn) != 0)
    edges = np.concatenate([[0], np.flatnonzero(jumps) + 1, [len(own)]])
    first = edges[:-1]
    return np.stack([rows[first], own[first], np.diff(edges)], axis=1)
