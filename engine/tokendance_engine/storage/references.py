"""Runs of a member's tokens that are rows of a master: 16 bytes a run, and no KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.storage.blocks import Flags, Index, expand
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.rows import Segment


@dataclass(frozen=True, slots=True)
class References:
    """Where referenced tokens come from.

    Attributes:
        runs: int32 [n, 4]: first token, length, index into `segments`, row in that segment; ascending, disjoint.
        segments: what the runs point into, each at least once.
    """

    runs: npt.NDArray[np.int32]
    segments: tuple[Segment, ...]

    @classmethod
    def none(cls) -> References:
        return cls(np.zeros((0, 4), dtype=np.int32), ())

    @classmethod
    def of(cls, tokens: Index, which: Index, rows: Index, segments: Sequence[Segment]) -> References:
        """From one entry per token: token number (ascending), index of its segment, row in it; int64 [n] each."""
        if not len(tokens):
            return cls.none()
        used, which = np.unique(which, return_inverse=True)
        jump = (np.diff(tokens) != 1) | (np.diff(which) != 0) | (np.diff(rows) != 1)
        starts = np.concatenate(([0], np.flatnonzero(jump) + 1))
        lengths = np.diff(np.concatenate((starts, [len(tokens)])))
        runs = np.stack([tokens[starts], lengths, which[starts], rows[starts]], axis=1)
        return cls(runs.astype(np.int32), tuple(segments[i] for i in used))

    def expand(self) -> tuple[Index, Index, Index]:
        """One entry per token, as `of` takes them."""
        runs = self.runs.astype(np.int64)
        lengths = runs[:, 1]
        return expand(runs[:, 0], lengths), np.repeat(runs[:, 2], lengths), expand(runs[:, 3], lengths)

    def keep(self, flags: Flags) -> References:
        """Only the tokens that are flagged, bool [n]."""
        tokens, which, rows = self.expand()
        wanted = flags[tokens]
        return self.of(tokens[wanted], which[wanted], rows[wanted], self.segments)

    def then(self, later: References) -> References:
        """These runs, then runs of later tokens.

        Raises:
            ShapeError: `later` starts before the end of these.
        """
        if not len(self.runs) or not len(later.runs):
            return later if len(later.runs) else self
        end = int(self.runs[-1, 0] + self.runs[-1, 1])
        if later.runs[0, 0] < end:
            raise ShapeError(f"references from token {later.runs[0, 0]}; must start at {end} or later")
        number = {id(segment): i for i, segment in enumerate(self.segments)}
        new = [segment for segment in later.segments if id(segment) not in number]
        number |= {id(segment): len(self.segments) + i for i, segment in enumerate(new)}
        moved = later.runs.copy()
        moved[:, 2] = np.array([number[id(s)] for s in later.segments], dtype=np.int32)[moved[:, 2]]
        return References(np.concatenate([self.runs, moved]), (*self.segments, *new))

    def flags(self, size: int) -> Flags:
        """One flag per token, bool [size]."""
        flags = np.zeros(size, dtype=bool)
        flags[self.expand()[0]] = True
        return flags

    @property
    def nbytes(self) -> int:
        return self.runs.nbytes

    def check(self) -> None:
        """Raise AssertionError unless runs ascend and lie inside their segments."""
        assert self.runs.dtype == np.int32
        runs = self.runs.astype(np.int64)
        assert bool((runs[:, 1] > 0).all()), "an empty run"
        assert bool((runs[1:, 0] >= (runs[:, 0] + runs[:, 1])[:-1]).all()), "runs overlap or are out of order"
        lengths = np.array([len(s) for s in self.segments], dtype=np.int64)
        assert bool((runs[:, 3] >= 0).all())
        assert bool((runs[:, 3] + runs[:, 1] <= lengths[runs[:, 2]]).all()), "a run leaves its segment"
        assert set(runs[:, 2].tolist()) == set(range(len(self.segments))), "a segment that no run uses"
