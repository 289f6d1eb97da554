"""The fused CPU restore: gather master rows, rotate keys, scatter both planes into pages, in one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokendance_engine.kernels.cpu_moves import Runs, Turns, move
from tokendance_engine.kernels.cpu_planes import Index, PackedPlane


@dataclass(frozen=True, slots=True)
class Rows:
    """Where n rows come from and go to, int64 [n] each, and their rotation, float32 [n, rot/2] each."""

    source_page: Index
    source_row: Index
    target_page: Index
    target_row: Index
    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]

    def runs(self) -> Runs:
        """The rows that lie one after the other on both sides, together."""
        return Runs.of(self.source_page, self.source_row, self.target_page, self.target_row)


@dataclass(frozen=True, slots=True)
class Planes:
    """Keys and values of one layer."""

    key: PackedPlane
    value: PackedPlane


def restore(source: Planes, target: Planes, runs: Runs, turns: Turns | None = None) -> None:
    """Restore rows of one layer, in place.

    Args:
        runs, turns: which rows, and how their keys are rotated; made once for all layers that rotate alike.

    Raises:
        ValueError: as `cpu_moves.move`.
    """
    move(source.key, target.key, runs, turns)
    move(source.value, target.value, runs)
