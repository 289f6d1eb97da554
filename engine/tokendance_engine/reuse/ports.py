"""The protocols through which the collector reaches an engine, and the jobs it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokendance_engine.segments.key import Tokens

PageTable = npt.NDArray[np.int32]
"""Page ids of a context in order, shape [n]."""

Moves = npt.NDArray[np.int64]
"""Restores (master row, prompt index, length, the row's position, the index's position), shape [n, 5]."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens to compute as one sequence of a virtual batch.

    Attributes:
        tokens: ids of indices [start, start + len(tokens)).
        start: first index: how many tokens of the context precede it.
        pages: the page table the run reads its context from and writes its K/V into.
        shift: position of a token minus its index.
        to: index its K/V is written from; `start` unless it is computed a second time for fillers.
    """

    tokens: Tokens
    start: int
    pages: PageTable
    shift: int = 0
    to: int | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def split(self, n: int) -> tuple[Run, Run]:
        """The first n tokens, and the rest."""
        head, tail = self.tokens[:n], self.tokens[n:]
        to = None if self.to is None else self.to + n
        return replace(self, tokens=head), replace(self, tokens=tail, start=self.start + n, to=to)

    def written(self) -> npt.NDArray[np.int64]:
        """Indices its K/V is written to."""
        first = self.start if self.to is None else self.to
        return np.arange(first, first + len(self.tokens), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MasterJob:
    """Compute rows of a master into its pages, run by run."""

    master: int
    runs: list[Run]

    @property
    def tokens(self) -> int:
        """Rows to compute."""
        return sum(len(run.tokens) for run in self.runs)


@dataclass(frozen=True, slots=True)
class MemberJob:
    """Fill one member's own pages: restore rows of its master, compute the rest.

    Attributes:
        request_id: the member.
        master: id of the master restored from; `master_pages` is its page table.
        pages: the member's page table.
        moves: rows to restore, span by span.
        runs: what to compute.
    """

    request_id: str
    master: int
    master_pages: PageTable
    pages: PageTable
    moves: Moves
    runs: list[Run]


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
