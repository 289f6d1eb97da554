"""Diff and deviation on CPUs: one parallel pass over both sides, without a rotated or gathered copy of either.

Packing what a diff found is `cpu_rows.gather` over `blocks.present_rows`; it reads only the rows that changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from tokendance_engine.kernels.blocks import BLOCK
from tokendance_engine.kernels.cpu import Rows
from tokendance_engine.kernels.cpu_numbers import number, rounded
from tokendance_engine.kernels.cpu_planes import PackedPlane, supported

Masks = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedPlanes:
    """Keys and values of one side of a comparison; None where a plane is absent (on both sides)."""

    key: PackedPlane | None
    value: PackedPlane | None


def diff(
    source: PackedPlanes,
    target: PackedPlanes,
    rows: Rows,
    masks: Masks | None = None,
    *,
    neox: bool = True,
    tolerance: float = 0.0,
) -> Masks:
    """`reference.diff_reference`: which rows of a mirror (target) differ from its master (source).

    Args:
        rows: source and target rows, and the rotation between them.
        masks: int32 [ceil(n / 16)] of other layers, added to in place; None starts from zero.
        neox: pairing of rotated dimensions.

    Raises:
        ValueError: sides that do not fit each other, or a dtype without a kernel; names both.
    """
    _check(source, target, rows)
    n = len(rows.source_page)
    masks = np.zeros(-(-n // BLOCK), dtype=np.int32) if masks is None else masks
    if masks.dtype != np.int32 or masks.shape != (-(-n // BLOCK),):
        raise ValueError(f"masks: {masks.dtype} {masks.shape}; allowed: int32 [{-(-n // BLOCK)}]")
    if not tolerance >= 0:
        raise ValueError(f"tolerance: {tolerance}; allowed: 0 or more")
    where = rows.source_page, rows.source_row, rows.target_page, rows.target_row
    if source.key is not None and target.key is not None:
        s, t = source.key, target.key
        first, second, rest = _pairs(len(s.at.dim), rows.cos.shape[1], neox)
        angles = (rows.cos, rows.sin, np.float32(tolerance))
        sides = (s.bits, t.bits, s.at.token, t.at.token)
        _diff_keys(
            masks,
            *where,
            *angles,
            *sides,
            *(at.dim[part] for part in (first, second, rest) for at in (s.at, t.at)),
        )
    if source.value is not None and target.value is not None:
        s, t = source.value, target.value
        _diff_values(masks, *where, s.bits, t.bits, s.at.token, t.at.token, s.at.dim, t.at.dim)
    return masks


def deviation(
    source: PackedPlane, target: PackedPlane, rows: Rows, *, neox: bool = True
) -> npt.NDArray[np.float32]:
    """`reference.deviation_reference`: float32 [n], fresh keys (target) against reused ones moved to their place.

    Raises:
        ValueError: as `diff`.
    """
    _check(PackedPlanes(source, None), PackedPlanes(target, None), rows)
    out = np.empty(len(rows.source_page), dtype=np.float32)
    first, second, rest = _pairs(len(source.at.dim), rows.cos.shape[1], neox)
    _deviation(
        out,
        rows.source_page,
        rows.source_row,
        rows.target_page,
        rows.target_row,
        rows.cos,
        rows.sin,
        source.bits,
        target.bits,
        source.at.token,
        target.at.token,
        *(at.dim[part] for part in (first, second, rest) for at in (source.at, target.at)),
    )
    return out


def _pairs(dim: int, half: int, neox: bool) -> tuple[npt.NDArray[np.int64], ...]:
    """Dimensions that are the first of a pair, the second, and those that are not rotated."""
    first = np.arange(half) if neox else np.arange(0, 2 * half, 2)
    return first, first + (half if neox else 1), np.arange(2 * half, dim)


def _check(source: PackedPlanes, target: PackedPlanes, rows: Rows) -> None:
    n = len(rows.source_page)
    if any(len(a) != n for a in (rows.source_row, rows.target_page, rows.target_row, rows.cos, rows.sin)):
        raise ValueError(f"rows of different lengths; all must have {n}")
    for name in ("key", "value"):
        s: PackedPlane | None = getattr(source, name)
        t: PackedPlane | None = getattr(target, name)
        if (s is None) != (t is None):
            raise ValueError(f"{name}: on one side only; both or neither must have it")
        if s is None or t is None:
            continue
        if s.dtype != t.dtype or not supported(s.dtype):
            raise ValueError(f"{name}: {s.dtype} and {t.dtype}; allowed: both float32 or both bfloat16")
        if s.bits.shape[1] != t.bits.shape[1] or len(s.at.dim) != len(t.at.dim):
            raise ValueError(
                f"{name}: {s.bits.shape[1]} heads of {len(s.at.dim)} and {t.bits.shape[1]} of {len(t.at.dim)}; "
                "they must be equal"
            )
        if name == "key" and 2 * rows.cos.shape[1] > len(s.at.dim):
            raise ValueError(f"{2 * rows.cos.shape[1]} rotated dimensions; a key has {len(s.at.dim)}")


@numba.njit(parallel=True, cache=True, nogil=True)
def _diff_keys(  # type: ignore[no-untyped-def]
    masks, sp, sr, tp, tr, cos, sin, tolerance, sb, tb, st, tt, s1, t1, s2, t2, s3, t3
):
    n, heads, half = len(sp), sb.shape[1], len(s1)
    for block in numba.prange(len(masks)):
        mask = np.int32(0)
        for r in range(min(BLOCK, n - block * BLOCK)):
            i = block * BLOCK + r
            a, b, changed = st[sr[i]], tt[tr[i]], False
            for h in range(heads):
                if changed:
                    break
                s, t = sb[sp[i], h], tb[tp[i], h]
                for j in range(half):
                    x, y = number(s[a + s1[j]]), number(s[a + s2[j]])
                    here1, here2 = t[b + t1[j]], t[b + t2[j]]
                    moved1 = rounded(x * cos[i, j] - y * sin[i, j], here1)
                    moved2 = rounded(y * cos[i, j] + x * sin[i, j], here2)
                    if moved1 != here1:
                        changed |= not abs(number(moved1) - number(here1)) <= tolerance or tolerance == 0
                    if moved2 != here2:
                        changed |= not abs(number(moved2) - number(here2)) <= tolerance or tolerance == 0
                for j in range(len(s3)):
                    changed |= s[a + s3[j]] != t[b + t3[j]]
            if changed:
                mask |= np.int32(1) << np.int32(r)
        masks[block] |= mask


@numba.njit(parallel=True, cache=True, nogil=True)
def _diff_values(masks, sp, sr, tp, tr, sb, tb, st, tt, sd, td):  # type: ignore[no-untyped-def]
    n, heads = len(sp), sb.shape[1]
    for block in numba.prange(len(masks)):
        mask = np.int32(0)
        for r in range(min(BLOCK, n - block * BLOCK)):
            i = block * BLOCK + r
            a, b, changed = st[sr[i]], tt[tr[i]], False
            for h in range(heads):
                if changed:
                    break
                s, t = sb[sp[i], h], tb[tp[i], h]
                for d in range(len(sd)):
                    changed |= s[a + sd[d]] != t[b + td[d]]
            if changed:
                mask |= np.int32(1) << np.int32(r)
        masks[block] |= mask


@numba.njit(parallel=True, cache=True, nogil=True)
def _deviation(out, sp, sr, tp, tr, cos, sin, sb, tb, st, tt, s1, t1, s2, t2, s3, t3):  # type: ignore[no-untyped-def]
    heads, half = sb.shape[1], len(s1)
    for i in numba.prange(len(sp)):
        a, b, total = st[sr[i]], tt[tr[i]], np.float32(0)
        for h in range(heads):
            s, t = sb[sp[i], h], tb[tp[i], h]
            for j in range(half):
                x, y = number(s[a + s1[j]]), number(s[a + s2[j]])
                e = number(t[b + t1[j]]) - (x * cos[i, j] - y * sin[i, j])
                f = number(t[b + t2[j]]) - (y * cos[i, j] + x * sin[i, j])
                total += e * e + f * f
            for j in range(len(s3)):
                e = number(t[b + t3[j]]) - number(s[a + s3[j]])
                total += e * e
        out[i] = total
