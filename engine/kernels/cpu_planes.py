"""How the CPU kernels see one plane (K or V): the memory of pages or of rows, and where an element lies in it.

The packing inside a page must be separable: element (token t, dim d) of a page and head lies at `token[t] + dim[d]`.
All packings of vLLM's CPU backend are (plain rows, transposed, AMX tiles). Stores are raw, so whoever uses this
verifies it against the backend's own writer first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Index = npt.NDArray[np.int64]
Bits = npt.NDArray[Any]
"""Elements as unsigned integers, uint16 or uint32 by their size."""

WIDTHS = {2: torch.uint16, 4: torch.uint32}


@dataclass(frozen=True, slots=True)
class Separable:
    """Offsets of an element inside the flattened interior of one page and head: `token[t] + dim[d]`."""

    token: Index
    dim: Index

    @classmethod
    def of(cls, where: torch.Tensor, tokens: int) -> Separable | None:
        """From a full table [tokens * dims]; None if it is not separable."""
        table = where.cpu().numpy().reshape(tokens, -1).astype(np.int64)
        token = np.ascontiguousarray(table[:, 0] - table[0, 0])
        dim = np.ascontiguousarray(table[0])
        return cls(token, dim) if np.array_equal(table, token[:, None] + dim[None, :]) else None


@dataclass(frozen=True, slots=True)
class PackedPlane:
    """One plane as [pages, heads, interior] bits; element (token, dim) at `at.token[token] + at.dim[dim]`.

    Attributes:
        bits: uint16 or uint32, a view of the memory it was made from.
        at: packing inside a page and head.
        dtype: what the bits are.
    """

    bits: Bits
    at: Separable
    dtype: torch.dtype

    @classmethod
    def of_pages(cls, cache: torch.Tensor, at: Separable) -> PackedPlane | None:
        """A plane of vLLM's pages [pages, heads, size, width]; None if they are not contiguous inside."""
        pages, heads, size, width = cache.shape
        if cache.device.type != "cpu" or cache[0].stride() != (size * width, width, 1):
            return None
        flat = cache.as_strided((pages, heads, size * width), (cache.stride(0), size * width, 1))
        return cls(flat.view(WIDTHS[cache.element_size()]).numpy(), at, cache.dtype)

    @classmethod
    def of_rows(cls, rows: torch.Tensor) -> PackedPlane:
        """Contiguous rows [n, heads, dim] as one page of n rows; a view.

        Raises:
            ValueError: rows of another shape, or not contiguous in CPU memory.
        """
        if rows.dim() != 3 or not rows.is_contiguous() or rows.device.type != "cpu":
            raise ValueError(
                f"rows {tuple(rows.shape)} on {rows.device}; allowed: contiguous [n, heads, dim] on cpu"
            )
        n, heads, dim = rows.shape
        bits = rows.view(WIDTHS[rows.element_size()]).numpy().reshape(-1)
        # Heads overlap on purpose: a row's stride steps over all of them.
        reach = max(0, (n - 1) * heads * dim + dim)
        view = np.lib.stride_tricks.as_strided(
            bits, (1, heads, reach), (0, dim * bits.itemsize, bits.itemsize), writeable=True
        )
        at = Separable(np.arange(n, dtype=np.int64) * heads * dim, np.arange(dim, dtype=np.int64))
        return cls(view, at, rows.dtype)

    @property
    def heads(self) -> int:
        return int(self.bits.shape[1])

    @property
    def dim(self) -> int:
        """Elements of a row and head."""
        return len(self.at.dim)

    def flat(self) -> tuple[Bits, int, int]:
        """All of the memory as one array, and the elements from page to page and from head to head.

        One contiguous array, because compiled code goes through that much faster than through strides.
        """
        size = self.bits.itemsize
        page, head = self.bits.strides[0] // size, self.bits.strides[1] // size
        pages, heads, inside = self.bits.shape
        reach = (pages - 1) * page + (heads - 1) * head + inside if self.bits.size else 0
        return np.lib.stride_tricks.as_strided(self.bits, (reach,), (size,), writeable=True), page, head

    def lies(self) -> int:
        """`ROWS` where a row's elements are neighbours, `COLUMNS` where a dimension's rows are, else `OTHER`."""
        if bool((np.diff(self.at.dim) == 1).all()):
            return ROWS
        return COLUMNS if bool((np.diff(self.at.token) == 1).all()) else OTHER

    def dense(self) -> bool:
        """Whether rows of one head follow each other without a gap."""
        return self.lies() == ROWS and bool((np.diff(self.at.token) == self.dim).all())


ROWS, COLUMNS, OTHER = 0, 1, 2


def supported(dtype: torch.dtype) -> bool:
    """Whether keys of this dtype can be rotated here; rows of any dtype can be copied."""
    return dtype in (torch.float32, torch.bfloat16)
