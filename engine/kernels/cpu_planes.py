"""How the CPU kernels see one plane (K or V): the memory of pages or of rows, and where an element lies in it.

The packing inside a page must be separable: element (token t, dim d) of a page and head lies at `token[t] + dim[d]`.
All packings of vLLM's CPU backend are (plain rows, transposed, AMX tiles). Stores are raw, so whoever uses this
verifies it against the backend's own writer first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Index = npt.NDArray[np.int64]
Bits = npt.NDArray[Any]
"""Elements as unsigned integers, uint16 or uint32 by their size."""

WIDTHS = {2: torch.uint16, 4: torch.uint32}


ROWS, COLUMNS, OTHER = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Separable:
    """Offsets of an element inside the flattened interior of one page and head: `token[t] + dim[d]`."""

    token: Index
    dim: Index

    @cached_property
    def lies(self) -> int:
        """`ROWS` where a row's elements are neighbours, `COLUMNS` where a dimension's rows are, else `OTHER`."""
        if bool((np.diff(self.dim) == 1).all()):
            return ROWS
        return COLUMNS if bool((np.diff(self.token) == 1).all()) else OTHER

    @cached_property
    def dense(self) -> bool:
        """Whether rows of one head follow each other without a gap."""
        return self.lies == ROWS and bool((np.diff(self.token) == len(self.dim)).all())

    @classmethod
    def of(cls, where: torch.Tensor, tokens: int) -> Separable | None:
        """From a full table [tokens * dims]; None if it is not separable."""
        table = where.cpu().numpy().reshape(tokens, -1).astype(np.int64)
        token = np.ascontiguousarray(table[:, 0] - table[0, 0])
        dim = np.ascontiguousarray(table[0])
        return cls(token, dim) if np.array_equal(table, token[:, None] + dim[None, :]) else None


@lru_cache(maxsize=256)
def _in_order(n: int, heads: int, dim: int) -> Separable:
    return Separable(np.arange(n, dtype=np.int64) * heads * dim, np.arange(dim, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class PackedPlane:
    """One plane: element (token, dim) of a page and head at `at.token[token] + at.dim[dim]` from where they begin.

    Attributes:
        flat: all of the memory as bits, uint16 or uint32, a view; one contiguous array, because compiled code goes
            through that much faster than through strides.
        pages, heads: how many.
        page, head: elements from one to the next.
        inside: elements from the first to the last of a page and head.
        at: packing inside a page and head.
        dtype: what the bits are.
    """

    flat: Bits
    pages: int
    page: int
    heads: int
    head: int
    inside: int
    at: Separable
    dtype: torch.dtype

    @classmethod
    def of_pages(cls, cache: torch.Tensor, at: Separable) -> PackedPlane | None:
        """A plane of vLLM's pages [pages, heads, size, width]; None if they are not contiguous inside."""
        pages, heads, size, width = cache.shape
        if cache.device.type != "cpu" or cache[0].stride() != (size * width, width, 1):
            return None
        inside, page = size * width, cache.stride(0)
        flat = cache.as_strided((page * (pages - 1) + heads * inside,), (1,))
        bits = flat.view(WIDTHS[cache.element_size()]).numpy()
        return cls(bits, pages, page, heads, inside, inside, at, cache.dtype)

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
        inside = max(0, (n - 1) * heads * dim + dim)
        return cls(bits, 1, 0, heads, dim, inside, _in_order(n, heads, dim), rows.dtype)

    @property
    def dim(self) -> int:
        """Elements of a row and head."""
        return len(self.at.dim)

    @property
    def bits(self) -> Bits:
        """The memory as [pages, heads, inside]; heads of plain rows overlap, since a row steps over all of them."""
        size = self.flat.itemsize
        strides = (self.page * size, self.head * size, size)
        return np.lib.stride_tricks.as_strided(
            self.flat, (self.pages, self.heads, self.inside), strides, writeable=True
        )


def supported(dtype: torch.dtype) -> bool:
    """Whether keys of this dtype can be rotated here; rows of any dtype can be copied."""
    return dtype in (torch.float32, torch.bfloat16)
