"""At which position each token of a member stands: its number, plus an offset that changes rarely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.storage.blocks import Index


@dataclass(frozen=True, slots=True)
class Positions:
    """Piecewise offsets.

    Attributes:
        steps: int32 [m, 2]: from this token on, position = token + offset. The first step is at token 0.
    """

    steps: npt.NDArray[np.int32]

    @classmethod
    def plain(cls) -> Positions:
        """Position = token."""
        return cls(np.zeros((1, 2), dtype=np.int32))

    @classmethod
    def of(cls, positions: Index) -> Positions:
        """From the position of every token, int64 [n]."""
        offsets = positions - np.arange(len(positions))
        starts = np.concatenate(([0], np.flatnonzero(np.diff(offsets)) + 1))
        if not len(positions):
            return cls.plain()
        return cls(np.stack([starts, offsets[starts]], axis=1).astype(np.int32))

    def at(self, tokens: Index) -> Index:
        """Positions of tokens, int64 [n]."""
        step = np.searchsorted(self.steps[:, 0], tokens, side="right") - 1
        positions: Index = tokens + self.steps[step, 1].astype(np.int64)
        return positions

    @property
    def nbytes(self) -> int:
        return self.steps.nbytes
