"""Compute fillers as second copies of rows that weigh little.

A filler computed like any token is noise right before a shared region, and what follows attends to it for being near.
So its K/V is that of a token of the same context, computed again at that token's place and written to the filler's:
attention sees the token twice. In the middle of a context that changes little; the first tokens (attention sinks) and
the nearest ones weigh much and are not repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tokendance_engine.reuse.ports import PageTable, Run
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from tokendance_engine.segments.key import Tokens

SINKS = 8
"""Leading tokens that are not repeated."""


def runs_with_fillers(
    spans: Sequence[tuple[int, int]], tokens: Tokens, pages: PageTable, frame: Frame, filling: Filling
) -> list[Run]:
    """The runs that compute some spans of a context.

    Args:
        spans: tokens [start, end) to compute, ascending.
        tokens: the context with its fillers, int32 [n].
        pages: its page table.
        frame: where its tokens stand.
        filling: its fillers.
    """
    runs: list[Run] = []
    for start, end in spans:
        at = start
        for first, count in filling.inserts:
            a, b = max(first, at), min(first + count, end)
            if a >= b:
                continue
            source = repeated(filling, first, count)
            runs += _run(tokens, pages, frame, at, a, at)
            if source is None:
                runs += _run(tokens, pages, frame, a, b, a)
            else:
                runs += _run(tokens, pages, frame, source + a - first, source + b - first, a)
            at = b
        runs += _run(tokens, pages, frame, at, end, at)
    return runs


def repeated(filling: Filling, first: int, count: int) -> int | None:
    """Which tokens the `count` fillers at index `first` repeat: those from this index on; None if there are too few.

    They stand in the middle of the longest run of tokens before the fillers that has none of the other fillers.
    """
    inserts = [(0, SINKS), *filling.before(first).inserts, (first, 0)]
    gaps = [(b - a - n, a + n) for (a, n), (b, _) in itertools.pairwise(inserts)]
    length, start = max(gaps)
    return start + (length - count) // 2 if length >= 2 * count else None


def _run(tokens: Tokens, pages: PageTable, frame: Frame, start: int, end: int, to: int) -> list[Run]:
    """Compute [start, end) and write it from index `to` on."""
    return [Run(tokens[a:b], a, pages, shift, to + a - start) for a, b, shift in frame.pieces(start, end)]
