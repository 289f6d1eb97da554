"""Rows out of packed pages and back, as bits, in parallel: what a diff packs, and how stored rows return to pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from tokendance_engine.kernels.cpu import CHUNK, Index, Separable

Bits = npt.NDArray[Any]
"""Elements as unsigned integers, uint16 or uint32 by their size."""

_WIDTHS = {2: torch.uint16, 4: torch.uint32}


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
        return cls(flat.view(_WIDTHS[cache.element_size()]).numpy(), at, cache.dtype)

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
        bits = rows.view(_WIDTHS[rows.element_size()]).numpy().reshape(-1)
        # Heads overlap on purpose: a row's stride steps over all of them.
        reach = max(0, (n - 1) * heads * dim + dim)
        view = np.lib.stride_tricks.as_strided(
            bits, (1, heads, reach), (0, dim * bits.itemsize, bits.itemsize), writeable=True
        )
        at = Separable(np.arange(n, dtype=np.int64) * heads * dim, np.arange(dim, dtype=np.int64))
        return cls(view, at, rows.dtype)


def gather(plane: PackedPlane, page: Index, row: Index) -> torch.Tensor:
    """Rows [n, heads, dim] in the order of `page`, `row` (int64 [n]): `reference.pack_reference`, bit for bit."""
    _check(page, row)
    out = torch.empty(len(page), plane.bits.shape[1], len(plane.at.dim), dtype=plane.dtype)
    _gather(
        plane.bits, page, row, plane.at.token, plane.at.dim, out.view(_WIDTHS[out.element_size()]).numpy()
    )
    return out


def scatter(rows: torch.Tensor, plane: PackedPlane, page: Index, row: Index) -> None:
    """The inverse of `gather`: rows [n, heads, dim] into pages, bit for bit. No target may be named twice.

    Raises:
        ValueError: rows of another dtype or shape, or not contiguous.
    """
    _check(page, row)
    wanted = (len(page), plane.bits.shape[1], len(plane.at.dim))
    if rows.dtype != plane.dtype or tuple(rows.shape) != wanted or not rows.is_contiguous():
        raise ValueError(
            f"rows: {rows.dtype} {tuple(rows.shape)}; allowed: contiguous {plane.dtype} {wanted}"
        )
    _scatter(
        rows.view(_WIDTHS[rows.element_size()]).numpy(), plane.bits, page, row, plane.at.token, plane.at.dim
    )


def _check(page: Index, row: Index) -> None:
    if page.dtype != np.int64 or row.dtype != np.int64 or page.shape != row.shape or page.ndim != 1:
        raise ValueError(
            f"page {page.dtype} {page.shape}, row {row.dtype} {row.shape}; allowed: two int64 arrays of one length"
        )


@numba.njit(parallel=True, cache=True, nogil=True)
def _gather(bits, page, row, token, dim, out):  # type: ignore[no-untyped-def]
    n, heads = out.shape[0], out.shape[1]
    for chunk in numba.prange((n + CHUNK - 1) // CHUNK):
        for i in range(chunk * CHUNK, min(n, (chunk + 1) * CHUNK)):
            at = token[row[i]]
            for h in range(heads):
                for d in range(len(dim)):
                    out[i, h, d] = bits[page[i], h, at + dim[d]]


@numba.njit(parallel=True, cache=True, nogil=True)
def _scatter(rows, bits, page, row, token, dim):  # type: ignore[no-untyped-def]
    n, heads = rows.shape[0], rows.shape[1]
    for chunk in numba.prange((n + CHUNK - 1) // CHUNK):
        for i in range(chunk * CHUNK, min(n, (chunk + 1) * CHUNK)):
            at = token[row[i]]
            for h in range(heads):
                for d in range(len(dim)):
                    bits[page[i], h, at + dim[d]] = rows[i, h, d]
