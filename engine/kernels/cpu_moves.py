"""Moving rows between two planes, keys rotated on the way, in one pass over memory.

Rows that follow each other on both sides are one run: an element's place is then looked up once a run, and the inner
loops go through neighbours, which the compiler turns into vector instructions. What a packing allows decides which loop
runs; for packings of which neither side has neighbours (AMX tiles) every element's place is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import numpy.typing as npt
from tokendance_engine.kernels.cpu_numbers import number, rounded
from tokendance_engine.kernels.cpu_planes import COLUMNS, ROWS, Index, PackedPlane, supported

LONGEST = 64
"""Rows of a run: what a thread takes at a time, and what must stay in the first cache."""

Angles = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows to move, as runs; the same for K, V and all layers.

    Attributes:
        table: int64 [m, 6]: source page, source row, target page, target row, rows, and which of all rows is the
            first.
        rows: rows in all.
    """

    table: Index
    rows: int

    @classmethod
    def of(cls, source_page: Index, source_row: Index, target_page: Index, target_row: Index) -> Runs:
        """From places row by row, int64 [n] each. No target may be named twice, none may be a source.

        Raises:
            ValueError: arrays of different lengths.
        """
        n = len(source_page)
        if any(len(a) != n for a in (source_row, target_page, target_row)):
            raise ValueError(f"rows of different lengths; all must have {n}")
        goes_on = np.zeros(n, dtype=bool)
        goes_on[1:] = _follow(source_page, source_row) & _follow(target_page, target_row)
        first = np.flatnonzero(~goes_on)
        inside = np.arange(n) - np.repeat(first, np.diff(first, append=n))
        first = np.flatnonzero(inside % LONGEST == 0)
        places = (source_page[first], source_row[first], target_page[first], target_row[first])
        table = np.column_stack([*places, np.diff(first, append=n), first]).astype(np.int64)
        return cls(table.reshape(-1, 6), n)


def _follow(page: Index, row: Index) -> npt.NDArray[np.bool_]:
    follow: npt.NDArray[np.bool_] = (page[1:] == page[:-1]) & (row[1:] == row[:-1] + 1)
    return follow


@dataclass(frozen=True, eq=False)
class Turns:
    """The rotation of every row of `runs`: cosines and sines, float32 [n, rot/2]; a width of 0 leaves keys as they are.

    Raises:
        ValueError: not one rotation for every row.
    """

    runs: Runs
    cos: Angles
    sin: Angles
    neox: bool = True

    def __post_init__(self) -> None:
        if len(self.cos) != self.runs.rows or len(self.sin) != self.runs.rows:
            raise ValueError(f"rotations of different lengths; both must have {self.runs.rows} rows")

    @cached_property
    def by_pair(self) -> tuple[Angles, Angles]:
        """The same, flat: run after run, in a run pair after pair of dimensions, so that a run's are neighbours."""
        return _by_run(self.cos, self.runs.table), _by_run(self.sin, self.runs.table)


def move(source: PackedPlane, target: PackedPlane, runs: Runs, turns: Turns | None = None) -> None:
    """Copy rows from one plane to another (or the same), bit for bit unless `turns` rotates them.

    Rotation is done in float32 and rounded once; dimensions beyond the rotated ones keep their bits.

    Raises:
        ValueError: planes that do not fit each other, more rotated dimensions than a row has, or a dtype that cannot
            be rotated.
    """
    if source.dtype != target.dtype or source.heads != target.heads or source.dim != target.dim:
        raise ValueError(
            f"rows of {source.dtype}, {source.heads} heads of {source.dim}, into {target.dtype}, {target.heads} heads "
            f"of {target.dim}; they must be equal"
        )
    sides = (
        source.flat,
        source.page,
        source.head,
        target.flat,
        target.page,
        target.head,
        source.heads,
        runs.table,
    )
    tables = (source.at.token, target.at.token, source.at.dim, target.at.dim)
    lies = source.at.lies, target.at.lies
    if turns is None or not turns.cos.shape[1]:
        _copy(*sides, *tables, 0, *lies, source.at.dense and target.at.dense)
        return
    half = turns.cos.shape[1]
    if turns.runs is not runs:
        raise ValueError("rotations of other rows; allowed: those made for these runs")
    if 2 * half > source.dim:
        raise ValueError(f"{2 * half} rotated dimensions; a key has {source.dim}")
    if not supported(source.dtype):
        raise ValueError(f"keys of {source.dtype}; allowed: float32, bfloat16")
    first = np.arange(half) if turns.neox else np.arange(0, 2 * half, 2)
    second = first + (half if turns.neox else 1)
    angles = (turns.cos, turns.sin)
    if lies == (COLUMNS, COLUMNS):
        angles = turns.by_pair
        kernel = _turn_columns
    elif lies[0] == ROWS and turns.neox:
        kernel = _turn_rows
    else:
        kernel = _turn_any
    kernel(*sides, *tables, first, second, *angles, lies[1])
    if 2 * half < source.dim:
        _copy(*sides, *tables, 2 * half, *lies, False)


@numba.njit(parallel=True, cache=True, nogil=True)
def _by_run(rows, runs):  # type: ignore[no-untyped-def]
    half = rows.shape[1]
    out = np.empty(rows.size, dtype=rows.dtype)
    for r in numba.prange(len(runs)):
        n, at = runs[r, 4], runs[r, 5]
        for p in range(half):
            for t in range(n):
                out[at * half + p * n + t] = rows[at + t, p]
    return out


@numba.njit(parallel=True, cache=True, nogil=True)
def _copy(  # type: ignore[no-untyped-def]
    source, s_page, s_head, target, d_page, d_head, heads, runs, s_token, d_token, s_dim, d_dim,
    low, s_lies, d_lies, dense,
):  # fmt: skip
    """Dimensions from `low` on."""
    dims, width = len(s_dim), np.uint64(len(s_dim) - low)
    for r in numba.prange(len(runs)):
        s_row, d_row, n = runs[r, 1], runs[r, 3], runs[r, 4]
        for h in range(heads):
            s, d = runs[r, 0] * s_page + h * s_head, runs[r, 2] * d_page + h * d_head
            if dense:
                a, b = np.uint64(s + s_token[s_row] + s_dim[0]), np.uint64(d + d_token[d_row] + d_dim[0])
                for i in range(np.uint64(n * dims)):
                    target[b + i] = source[a + i]
            elif s_lies == 0 and d_lies == 0:
                for t in range(n):
                    a = np.uint64(s + s_token[s_row + t] + s_dim[low])
                    b = np.uint64(d + d_token[d_row + t] + d_dim[low])
                    for i in range(width):
                        target[b + i] = source[a + i]
            else:
                for j in range(low, dims):
                    for t in range(n):
                        at = np.uint64(s + s_token[s_row + t] + s_dim[j])
                        target[np.uint64(d + d_token[d_row + t] + d_dim[j])] = source[at]


@numba.njit(parallel=True, cache=True, nogil=True)
def _turn_columns(  # type: ignore[no-untyped-def]
    source, s_page, s_head, target, d_page, d_head, heads, runs, s_token, d_token, s_dim, d_dim,
    first, second, cos, sin, d_lies,
):  # fmt: skip
    """Rows are neighbours on both sides: one pair of dimensions after the other.

    Places are unsigned: a signed one would be checked for being negative, element by element.
    """
    for r in numba.prange(len(runs)):
        s_row, d_row = runs[r, 1], runs[r, 3]
        n = np.uint64(runs[r, 4])
        for h in range(heads):
            s_base = runs[r, 0] * s_page + h * s_head
            d_base = runs[r, 2] * d_page + h * d_head
            for p in range(len(first)):
                x1 = np.uint64(s_base + s_token[s_row] + s_dim[first[p]])
                x2 = np.uint64(s_base + s_token[s_row] + s_dim[second[p]])
                y1 = np.uint64(d_base + d_token[d_row] + d_dim[first[p]])
                y2 = np.uint64(d_base + d_token[d_row] + d_dim[second[p]])
                q = np.uint64(runs[r, 5] * len(first) + p * runs[r, 4])
                for t in range(n):
                    u, v = number(source[x1 + t]), number(source[x2 + t])
                    target[y1 + t] = rounded(u * cos[q + t] - v * sin[q + t], source[x1 + t])
                for t in range(n):
                    u, v = number(source[x1 + t]), number(source[x2 + t])
                    target[y2 + t] = rounded(v * cos[q + t] + u * sin[q + t], source[x1 + t])


@numba.njit(parallel=True, cache=True, nogil=True)
def _turn_rows(  # type: ignore[no-untyped-def]
    source, s_page, s_head, target, d_page, d_head, heads, runs, s_token, d_token, s_dim, d_dim,
    first, second, cos, sin, d_lies,
):  # fmt: skip
    """A source row's elements are neighbours, pairs are half a row apart: row by row, spread out at the end."""
    half = np.uint64(len(first))
    for r in numba.prange(len(runs)):
        s_row, d_row, n, at = runs[r, 1], runs[r, 3], runs[r, 4], runs[r, 5]
        turned = np.empty(LONGEST * 2 * len(first), dtype=target.dtype)
        for h in range(heads):
            s, d = runs[r, 0] * s_page + h * s_head, runs[r, 2] * d_page + h * d_head
            for t in range(n):
                x1 = np.uint64(s + s_token[s_row + t] + s_dim[0])
                x2, y1, q = x1 + half, np.uint64(2 * t) * half, np.uint64(at + t)
                y2 = y1 + half
                for p in range(half):
                    u, v = number(source[x1 + p]), number(source[x2 + p])
                    turned[y1 + p] = rounded(u * cos[q, p] - v * sin[q, p], source[x1 + p])
                for p in range(half):
                    u, v = number(source[x1 + p]), number(source[x2 + p])
                    turned[y2 + p] = rounded(v * cos[q, p] + u * sin[q, p], source[x1 + p])
            rot = half + half
            if d_lies == 1:
                for j in range(rot):
                    b = np.uint64(d + d_token[d_row] + d_dim[j])
                    for t in range(np.uint64(n)):
                        target[b + t] = turned[t * rot + j]
            else:
                for t in range(n):
                    b, y = d + d_token[d_row + t], np.uint64(t) * rot
                    for j in range(rot):
                        target[np.uint64(b + d_dim[j])] = turned[y + j]


@numba.njit(parallel=True, cache=True, nogil=True)
def _turn_any(  # type: ignore[no-untyped-def]
    source, s_page, s_head, target, d_page, d_head, heads, runs, s_token, d_token, s_dim, d_dim,
    first, second, cos, sin, d_lies,
):  # fmt: skip
    """Any packing and pairing: every element's place is looked up."""
    for r in numba.prange(len(runs)):
        s_row, d_row, n, at = runs[r, 1], runs[r, 3], runs[r, 4], runs[r, 5]
        for h in range(heads):
            s = source[runs[r, 0] * s_page + h * s_head :]
            d = target[runs[r, 2] * d_page + h * d_head :]
            for t in range(n):
                x, y = s[s_token[s_row + t] :], d[d_token[d_row + t] :]
                c, g = cos[at + t], sin[at + t]
                for p in range(len(first)):
                    u, v = number(x[s_dim[first[p]]]), number(x[s_dim[second[p]]])
                    y[d_dim[first[p]]] = rounded(u * c[p] - v * g[p], x[0])
                    y[d_dim[second[p]]] = rounded(v * c[p] + u * g[p], x[0])
