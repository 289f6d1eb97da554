"""The protocols through which the collector reaches an engine, and the jobs it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokendance_engine.reuse.plan import Runs, Spans
from tokendance_engine.segments.key import Tokens

PageTable = npt.NDArray[np.int32]
"""Page ids of a context in order, shape [n]."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens to compute as one sequence of a virtual batch.

    Attributes:
        tokens: ids of positions [start, start + len(tokens)).
        start: first position.
        pages: the page table the run reads its context from and writes its K/V into.
    """

    tokens: Tokens
    start: int
    pages: PageTable

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class MasterJob:
    """Compute rows [start, start + len(tokens)) of a master into its pages."""

    master: int
    run: Run


@dataclass(frozen=True, slots=True)
class MemberJob:
    """Restore and compute one member's promised tokens.

    Attributes:
        request_id: the member.
        master: id of the master restored from; `master_pages` is its page table.
        pages: the member's page table.
        first_page: index of the first page this job writes (pages before it belong to the prefix cache).
        restore: (master row, prompt position, length) per span.
        compute: runs [start, end) of the prompt.
        tokens: prompt ids of the computed positions, concatenated in run order.
    """

    request_id: str
    master: int
    master_pages: PageTable
    pages: PageTable
    first_page: int
    restore: Spans
    compute: Runs
    tokens: Tokens

    def runs(self) -> list[Run]:
        """The computed positions as virtual-batch runs."""
        lengths = self.compute[:, 1] - self.compute[:, 0]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return [
            Run(self.tokens[offsets[i] : offsets[i + 1]], int(start), self.pages)
            for i, (start, _) in enumerate(self.compute)
        ]


class Pages(Protocol):
    """Moves K/V between page tables."""

    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """Write every restore span of every job, keys rotated from master row to prompt position."""
        ...


class VirtualBatch(Protocol):
    """Computes tokens through the model's own forward pass."""

    max_tokens: int
    max_runs: int

    def forward(self, runs: Sequence[Run]) -> None:
        """Compute all runs in one pass; their K/V lands in their pages."""
        ...
