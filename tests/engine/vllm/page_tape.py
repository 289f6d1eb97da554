"""What stands in pages: a worker that writes (token, position) instead of keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokendance_engine.adapters.vllm.messages import StepMeta
from tokendance_engine.reuse.fillers import repeated, runs_with_fillers
from tokendance_engine.reuse.ports import MemberJob, Run
from tokendance_engine.segments.filling import Filling

NOTHING = -1


class Tape:
    """Pages of one pool.

    Attributes:
        rows: int64 [pages, page size, 2]; token and position, or NOTHING.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.rows = np.full((pages, page_size, 2), NOTHING, dtype=np.int64)

    def run(self, meta: StepMeta) -> None:
        """Masters, then restores, then runs; fails on a read of what nobody wrote or on a move to a wrong place."""
        for master in meta.masters:
            self.compute(master.runs)
        for job in meta.members:
            for row, index, n, old, new in job.moves.tolist():
                got = self.read(job.master_pages, row, n).copy()
                assert (got[:, 1] == old + np.arange(n)).all(), (
                    "a key is turned back from where it does not stand"
                )
                got[:, 1] += new - old
                self._write(job.pages, index, got)
        self.compute([run for job in meta.members for run in [*job.runs, *_least(job)]])

    def compute(self, runs: Sequence[Run]) -> None:
        """A pass writes all runs before it reads their contexts."""
        for run in runs:
            at = np.arange(run.start, run.end) + run.shift
            self._write(run.pages, int(run.written()[0]), np.stack([run.tokens, at], axis=1))
        for run in runs:
            self.read(run.pages, 0, run.end)

    def read(self, pages: npt.NDArray[np.int32], start: int, n: int) -> npt.NDArray[np.int64]:
        """Rows [start, start + n) of a page table, int64 [n, 2]."""
        at = np.arange(start, start + n)
        got: npt.NDArray[np.int64] = self.rows[pages[at // self.page_size], at % self.page_size]
        assert (got != NOTHING).all(), "a context holds a row that nobody wrote"
        return got

    def _write(self, pages: npt.NDArray[np.int32], start: int, rows: npt.NDArray[np.int64]) -> None:
        at = np.arange(start, start + len(rows))
        self.rows[pages[at // self.page_size], at % self.page_size] = rows


def _least(job: MemberJob) -> list[Run]:
    """What is computed of a member whose backend is asked and chooses nothing."""
    if job.ask is None:
        return []
    spans = job.ask.compute.tolist()
    return runs_with_fillers(spans, job.ask.prompt, job.pages, job.ask.frame, job.ask.filling)


def check_context(
    rows: npt.NDArray[np.int64], tokens: Sequence[int], positions: Sequence[int], filling: Filling
) -> None:
    """Rows hold these tokens at these positions; a filler that the worker computed repeats another of them."""
    wanted = np.stack([tokens, positions], axis=1)
    for first, count in filling.inserts:
        source, count = repeated(filling, first, count), min(count, len(rows) - first)
        if source is not None and count > 0:
            filled, told = rows[first : first + count], wanted[first : first + count]
            second = wanted[source : source + count].copy()
            assert ((filled == told) | (filled == second)).all(axis=1).all()
            told[:] = filled
    assert rows.tolist() == wanted.tolist()
