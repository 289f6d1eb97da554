"""Execute the plans of all members of a round in one pass (paper section 4.2).

Order matters and is fixed: masters first, then restores, then the virtual batch, whose runs are packed in member
order. A pass writes every layer's K/V before that layer attends, so members may read pages that earlier members of
the same pass write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokendance_engine.reuse.ports import MemberJob, Pages, Run, VirtualBatch


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds one collective pass took."""

    restore_ms: float = 0.0
    compute_ms: float = 0.0


def passes(runs: Sequence[Run], max_tokens: int, max_runs: int) -> Iterator[list[Run]]:
    """Pack runs, in order, into passes within both limits; a run that does not fit is cut."""
    batch: list[Run] = []
    room = max_tokens
    for run in runs:
        while len(run.tokens):
            if room == 0 or len(batch) == max_runs:
                yield batch
                batch, room = [], max_tokens
            take = min(room, len(run.tokens))
            head, run = run.split(take)
            batch.append(head)
            room -= take
    if batch:
        yield batch


def compute(runs: Sequence[Run], batch: VirtualBatch) -> None:
    """Compute runs in as few passes as the limits allow."""
    for part in passes(runs, batch.max_tokens, batch.max_runs):
        batch.forward(part)


def collect(jobs: Sequence[MemberJob], pages: Pages, batch: VirtualBatch) -> Timing:
    """Restore and compute all members of a group.

    Returns:
        Wall-clock milliseconds of the two halves, for the whole group.
    """
    started = time.perf_counter()
    pages.restore(jobs)
    restored = time.perf_counter()
    compute([run for job in jobs for run in job.runs], batch)
    return Timing((restored - started) * 1e3, (time.perf_counter() - restored) * 1e3)
