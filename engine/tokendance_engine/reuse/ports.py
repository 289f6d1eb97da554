"""The protocols through which the collector reaches an engine, and the jobs it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.segments.filling import UNFILLED, Filling
from tokendance_engine.segments.frame import IN_PLACE, Frame
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
class Ask:
    """A backend that must be asked about one member in the worker, and what it must know.

    Attributes:
        backend, options: as for `make_backend`; all options are given.
        scope: whose state the backend keeps: (tenant's salt, session).
        round: what is learned from it serves later ones.
        agent: the member.
        prompt: its tokens up to the end of the plan, fillers included.
        segments: (start, end, row) of those the master holds, ascending, int64 [n, 3].
        compute: runs [start, end) to compute in any case, int64 [n, 2].
        frame, filling: where the tokens stand, and its fillers.
    """

    backend: str
    options: Mapping[str, Any]
    scope: tuple[str, ...]
    round: str
    agent: str
    prompt: Tokens
    segments: npt.NDArray[np.int64]
    compute: npt.NDArray[np.int64]
    frame: Frame = IN_PLACE
    filling: Filling = UNFILLED


@dataclass(frozen=True, slots=True)
class MemberJob:
    """Fill one member's own pages: restore rows of its master, compute the rest.

    Attributes:
        request_id: the member.
        master: id of the master restored from; `master_pages` is its page table.
        pages: the member's page table.
        moves: rows to restore, span by span.
        runs: what to compute, unless a backend must be asked first.
        ask: the backend to ask.
    """

    request_id: str
    master: int
    master_pages: PageTable
    pages: PageTable
    moves: Moves
    runs: list[Run]
    ask: Ask | None = None


class Pages(Protocol):
    """Moves K/V between page tables."""

    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """Write every restore span of every job, keys rotated from master row to prompt position."""
        ...


class Rows(Protocol):
    """Reads and writes single rows of page tables, layer by layer."""

    layers: int

    def read(
        self, layer: int, pages: PageTable, at: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the tokens with these indices, [n, heads, dim] each, as stored."""
        ...

    def write(
        self,
        layer: int,
        pages: PageTable,
        at: npt.NDArray[np.int64],
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Put K and V in their place."""
        ...

    def turn(
        self, layer: int, keys: torch.Tensor, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Keys [n, heads, dim] of a layer rotated from old to new positions, float32."""
        ...


class VirtualBatch(Protocol):
    """Computes tokens through the model's own forward pass."""

    max_tokens: int
    max_runs: int

    def forward(self, runs: Sequence[Run]) -> None:
        """Compute all runs in one pass; their K/V lands in their pages."""
        ...

    def keys(self, runs: Sequence[Run], layer: int) -> torch.Tensor:
        """Compute all runs in one pass up to a layer's keys, and no further.

        K/V of the layers below lands in the pages; that of the layer itself stays as it is.

        Returns:
            Keys of the runs' tokens in order, [tokens, heads, dim], rotated to their positions.
        """
        ...

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores summed over all workers that hold a part of every token's heads."""
        ...
