"""Execute the plans of all members of a round in one pass (paper section 4.2).

Order matters and is fixed: masters first, then restores, then what backends say of them, then the virtual batch,
whose runs are packed in member order. A pass writes every layer's K/V before that layer attends, so members may read
pages that earlier members of the same pass write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokendance_engine.reuse.ports import MemberJob, Pages, Run, VirtualBatch

if TYPE_CHECKING:
    from tokendance_engine.reuse.judge import Judge, Verdict


@dataclass(frozen=True, slots=True)
class Timing:
    """What one collective pass took, and what backends did with members that they were asked about.

    Attributes:
        restore_ms, compute_ms: milliseconds; asking backends counts as computing.
        verdicts: by request id.
    """

    restore_ms: float = 0.0
    compute_ms: float = 0.0
    verdicts: dict[str, Verdict] = field(default_factory=dict)


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


def collect(
    jobs: Sequence[MemberJob], pages: Pages, batch: VirtualBatch, judge: Judge | None = None
) -> Timing:
    """Restore and compute all members of a group.

    Args:
        judge: asks backends; only needed for jobs that say so.

    Returns:
        Wall-clock milliseconds of the two halves, for the whole group.

    Raises:
        ValueError: a backend is to be asked and there is no judge, or its answer is wrong.
    """
    started = time.perf_counter()
    pages.restore(jobs)
    restored = time.perf_counter()
    asked = [job for job in jobs if job.ask is not None]
    if asked and judge is None:
        raise ValueError(f"{len(asked)} members name a backend that must be asked, and nobody asks it")
    cases = judge.open(asked) if judge is not None else []
    decided = {case.job.request_id: case.runs() for case in cases}
    compute([run for job in jobs for run in decided.get(job.request_id, job.runs)], batch)
    verdicts = judge.close(cases) if judge is not None else {}
    return Timing((restored - started) * 1e3, (time.perf_counter() - restored) * 1e3, verdicts)
