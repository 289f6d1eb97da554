"""A backend as somebody outside would write it from `docs/backends.md`: offsets as in KVComm, in a few lines.

What a shared segment's KV lacks because it was computed elsewhere is learned from the members that computed it, and
added for later members. Keys are kept as they would stand at position 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tokendance_engine.reuse.backends import GROUP, Backend, Option, Piece, Whole


class Offset(Backend):
    """Add the mean of the offsets seen before, of at most `most` members."""

    name = "test-offset"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"most": Whole(8, 1, 100)}
    corrects = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[tuple[Any, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def covers(self, piece: Piece) -> bool:
        return (piece.segment, piece.offset, len(piece), 0) in self.seen

    def correct(
        self, piece: Piece, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.seen[piece.segment, piece.offset, len(piece), layer]
        keys, values = (torch.stack(part).mean(0) for part in zip(*seen, strict=True))
        moved = self.turn(layer, keys, np.zeros(len(piece), dtype=np.int64), piece.positions)
        return key + moved, value + values

    def observe(
        self,
        piece: Piece,
        layer: int,
        restored: tuple[torch.Tensor, torch.Tensor],
        computed: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        seen = self.seen.setdefault((piece.segment, piece.offset, len(piece), layer), [])
        if len(seen) < self.whole("most"):
            offset = computed[0].float() - restored[0].float()
            origin = np.zeros(len(piece), dtype=np.int64)
            keys = self.turn(layer, offset, piece.positions, origin)
            seen.append((keys, computed[1].float() - restored[1].float()))


class Broken(Backend):
    """Corrects rows to another shape."""

    name = "test-broken"
    corrects = True

    def covers(self, piece: Piece) -> bool:
        return True

    def correct(
        self, piece: Piece, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key[1:], value[1:]


def install(folder: Path) -> None:
    """What installing a package with these entry points leaves behind."""
    info = folder / "offset_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offset-backend\nVersion: 1.0\n")
    names = {"test-offset": "Offset", "test-broken": "Broken", "test-missing": "Missing"}
    lines = [f"{name} = offset_backend:{kind}" for name, kind in names.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")


def installed() -> list[str]:
    """Names of the group's entry points."""
    return sorted(point.name for point in entry_points(group=GROUP))
