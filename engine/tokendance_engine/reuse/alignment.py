"""Bring the shared regions of a round's members to the same positions and page phase, so that pages can be shared.

A region is a run of shared segments that a master holds without interruption. Each member gets fillers (less than a
page) right before it, so that its tokens fall into pages as the master's rows do, and skips positions, so that it
stands where the master's rows stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokendance_engine.reuse.selection import Reused
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from tokendance_engine.segments.transcript import Transcript

MIN_PAGES = 2
"""A run of shared segments shorter than this is not worth fillers."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """How a member is laid out.

    Attributes:
        filling: its fillers, those of earlier rounds included.
        frame: where its filled tokens stand.
        aligned: regions brought into place.
        reason: why the first region that could not be brought into place was left; None if all were.
        end: where the last of these regions ends, in filled coordinates of the cached part.
    """

    filling: Filling
    frame: Frame
    aligned: int = 0
    reason: str | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Segments of a member that follow each other in the prompt and in the master: tokens [start, end) from `row`."""

    start: int
    end: int
    row: int


@dataclass(frozen=True, slots=True)
class Aligner:
    """The rules.

    Attributes:
        page_size: tokens per page.
        max_skipped: most positions a member may skip before one region.
    """

    page_size: int
    max_skipped: int

    def align(self, found: Sequence[Reused], start: Aligned, cached: int, transcript: Transcript) -> Aligned:
        """Bring every region of a member that is not cached yet into place.

        Args:
            found: what the master holds of it, in filled coordinates of `start`.
            start: fillers and positions of its cached part.
            cached: filled tokens vLLM holds.
            transcript: the master; regions it has no position for yet are ignored.
        """
        state = start
        for region in range(len(transcript.regions)):
            run = self._run(found, cached, transcript, region)
            if run is not None and region < transcript.placed:
                state = self._place(run, state, start, transcript)
        return state

    def start(
        self, found: Sequence[Reused], start: Aligned, cached: int, transcript: Transcript
    ) -> tuple[int, int] | None:
        """Where the first region without a position would begin in this member, were nothing done for it.

        Returns:
            Index, fillers of earlier regions included, and shift; None if the member has no use for it.
        """
        region = transcript.placed
        run = self._run(found, cached, transcript, region)
        if run is None:
            return None
        state = self.align(found, start, cached, transcript)
        at = run.start + state.filling.count - start.filling.count
        return at - (run.row - transcript.regions[region]), state.frame.shift

    def wish(self, start: tuple[int, int], row: int) -> int:
        """The lowest position at which a member can have a region that begins at a master's row."""
        at, shift = start
        return at + (row - at) % self.page_size + shift

    def gap(self, starts: Sequence[tuple[int, int]], row: int) -> int:
        """Fillers of the master before a region at `row`, such that members need the fewest fillers."""
        counts = [sum((row + gap - at) % self.page_size for at, _ in starts) for gap in range(self.page_size)]
        return counts.index(min(counts))

    def position(self, wishes: Sequence[int], least: int) -> int:
        """Where a region stands: so that most members reach it without skipping too much, then as low as possible.

        Args:
            wishes: one per member, see `wish`.
            least: the master's own wish.
        """
        best, most = least, -1
        for candidate in sorted({least, *(w for w in wishes if w > least)}):
            reached = sum(candidate - self.max_skipped <= w <= candidate for w in wishes)
            if reached > most:
                best, most = candidate, reached
        return best

    def _run(self, found: Sequence[Reused], cached: int, transcript: Transcript, region: int) -> Run | None:
        """The longest run of a region that is not cached; None if it is too short to care.

        A region may begin in cached pages (the last round's task, say, has been computed and is now a shared text), or
        be interrupted by an answer that only some members gave, which the master has elsewhere.
        """
        first, last = transcript.region(region)
        runs: list[Run] = []
        for s in found:
            if not (first <= s.row < last and s.start >= cached):
                continue
            before = runs[-1] if runs else None
            if before is not None and (before.end, before.row + before.end - before.start) == (
                s.start,
                s.row,
            ):
                runs[-1] = Run(before.start, s.end, before.row)
            else:
                runs.append(Run(s.start, s.end, s.row))
        longest = max(runs, key=lambda run: run.end - run.start, default=None)
        enough = longest is not None and longest.end - longest.start >= MIN_PAGES * self.page_size
        return longest if enough else None

    def _place(self, run: Run, state: Aligned, start: Aligned, transcript: Transcript) -> Aligned:
        if run.start < state.end:  # fillers and skipped positions here would move what is in place already
            return _left(state, "shorter_history")
        at = run.start + state.filling.count - start.filling.count
        count = (run.row - at) % self.page_size
        if count and not at:  # the first tokens of a context are attention sinks
            return _left(state, "shorter_history")
        shift = int(transcript.frame.at(np.array([run.row]))[0]) - (at + count)
        if shift < state.frame.shift:
            return _left(state, "longer_history")
        if shift - state.frame.shift > self.max_skipped:
            return _left(state, "shorter_history")
        return Aligned(
            state.filling.plus(at, count),
            state.frame.stepped(at + count, shift),
            state.aligned + 1,
            state.reason,
            run.end,
        )


def _left(state: Aligned, reason: str) -> Aligned:
    return replace(state, reason=state.reason or reason)
