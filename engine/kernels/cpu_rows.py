"""Rows out of packed pages and back, as bits, in parallel: what a diff packs, and how stored rows return to pages."""

from __future__ import annotations

import numpy as np
import torch
from tokendance_engine.kernels.cpu_moves import Runs, move
from tokendance_engine.kernels.cpu_planes import Index, PackedPlane


def gather(plane: PackedPlane, page: Index, row: Index) -> torch.Tensor:
    """Rows [n, heads, dim] in the order of `page`, `row` (int64 [n]): `reference.pack_reference`, bit for bit."""
    _check(page, row)
    out = torch.empty(len(page), plane.heads, plane.dim, dtype=plane.dtype)
    if len(page):
        move(plane, PackedPlane.of_rows(out), Runs.of(page, row, *_all_of(page)))
    return out


def scatter(rows: torch.Tensor, plane: PackedPlane, page: Index, row: Index) -> None:
    """The inverse of `gather`: rows [n, heads, dim] into pages, bit for bit. No target may be named twice.

    Raises:
        ValueError: rows of another dtype or shape, or not contiguous.
    """
    _check(page, row)
    wanted = (len(page), plane.heads, plane.dim)
    if rows.dtype != plane.dtype or tuple(rows.shape) != wanted or not rows.is_contiguous():
        raise ValueError(
            f"rows: {rows.dtype} {tuple(rows.shape)}; allowed: contiguous {plane.dtype} {wanted}"
        )
    if len(page):
        move(PackedPlane.of_rows(rows), plane, Runs.of(*_all_of(page), page, row))


def _all_of(page: Index) -> tuple[Index, Index]:
    """Every row of one page, in order."""
    return np.zeros(len(page), dtype=np.int64), np.arange(len(page), dtype=np.int64)


def _check(page: Index, row: Index) -> None:
    if page.dtype != np.int64 or row.dtype != np.int64 or page.shape != row.shape or page.ndim != 1:
        raise ValueError(
            f"page {page.dtype} {page.shape}, row {row.dtype} {row.shape}; allowed: two int64 arrays of one length"
        )
