"""Compute the segments of a master that stand apart: each as a context of its own, the preamble before it."""

from __future__ import annotations

import numpy as np

from tokendance_engine.reuse.ports import PageTable, Run
from tokendance_engine.segments.transcript import FILLER, Transcript


def runs_apart(transcript: Transcript, start: int, end: int, pages: PageTable) -> list[Run]:
    """The runs that compute rows [start, end), without the gaps between segments.

    Args:
        transcript: segments stand apart.
        pages: its page table. A segment's own context is the preamble's pages, then the segment's.
    """
    size, preamble = transcript.apart, transcript.preamble
    before = len(preamble)
    runs = []
    if start < before:
        runs.append(Run(preamble[start : min(end, before)], start, pages[: before // size]))
    for entry in transcript.entries:
        a, b = max(start - entry.row, 0), min(end - entry.row, len(entry.tokens))
        if entry.key == FILLER or a >= b:
            continue
        own = pages[entry.row // size : -(-(entry.row + len(entry.tokens)) // size)]
        runs.append(Run(entry.tokens[a:b], before + a, np.concatenate([pages[: before // size], own])))
    return runs
