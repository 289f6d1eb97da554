"""KV rows in host memory, as computed: the objects that a pool counts and a tier spills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Index
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.layout import Layout

ReadRows = Callable[[int, npt.NDArray[np.int64]], tuple[torch.Tensor, torch.Tensor]]
"""(layer, token indices int64 [n]) -> K and V as they stand in the pages, [n, heads, dim] each, any device."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Rows:
    """Packed rows.

    Attributes:
        kv: [2 (K, V), layers, rows, heads, dim] in the KV dtype, contiguous, owning exactly its own bytes.
    """

    kv: torch.Tensor

    def __len__(self) -> int:
        return int(self.kv.shape[2])

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, [rows, heads, dim] each, without a copy."""
        return self.kv[0, layer], self.kv[1, layer]

    def head(self, rows: int) -> Rows:
        """The first rows, as a copy that keeps nothing else alive."""
        return Rows(self.kv[:, :, :rows].clone())


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Segment:
    """KV of a token run of a master, frame `at(first)`.

    Attributes:
        tokens: ids, int32 [rows].
        first: position of the first token; the following ones stand at the following positions.
        context: id of what the run was computed after.
        rows: its KV.
    """

    tokens: Tokens
    first: int
    context: bytes
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.rows.nbytes


def read_rows(layout: Layout, read: ReadRows, tokens: Index) -> Rows:
    """Copy rows of all layers into host memory, one call of `read` per layer.

    Raises:
        ShapeError: `read` returned another shape or dtype than the layout says.
    """
    kv = layout.empty(len(tokens))
    want = (len(tokens), layout.heads, layout.dim)
    for layer in range(layout.layers):
        for plane, got in enumerate(read(layer, tokens)):
            if tuple(got.shape) != want or got.dtype != layout.torch_dtype:
                raise ShapeError(
                    f"layer {layer}: rows {tuple(got.shape)} {got.dtype}; must be {want} {layout.torch_dtype}"
                )
            kv[plane, layer].copy_(got)
    return Rows(kv)


def same_bits(a: Rows, b: Rows) -> bool:
    """Whether two runs of rows hold the same bytes (NaNs included)."""
    if a.kv.shape != b.kv.shape or a.kv.dtype != b.kv.dtype:
        return False
    return torch.equal(bits(a.kv), bits(b.kv))


def bits(x: torch.Tensor) -> torch.Tensor:
    """A float tensor as integers of the same width: equality of bytes, not of numbers."""
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])
