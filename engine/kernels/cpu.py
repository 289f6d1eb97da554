"""The fused CPU restore: gather master rows, rotate keys, scatter both planes into pages, in one pass over memory.

Stores are raw, so the packing inside a page must be known and separable: element (token t, dim d) of a page and head
lies at `a[t] + b[d]`. All packings of vLLM's CPU backend are (plain rows, transposed, AMX tiles). Whoever uses this
verifies it against the backend's own writer first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
import torch

CHUNK = 64
"""Rows one thread takes at a time: a few pages, so that a page is mostly written by one core."""

Index = npt.NDArray[np.int64]


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


def supported(dtype: torch.dtype) -> bool:
    """Whether pages of this dtype can be restored here (numba has no half precision; bf16 is done on its bits)."""
    return dtype in (torch.float32, torch.bfloat16)


def as_array(cache: torch.Tensor) -> npt.NDArray[np.generic] | None:
    """A layer's pages [pages, heads, size, width] as a writable numpy view [pages, heads, size * width].

    bf16 comes as uint16. None if the pages are not contiguous inside.
    """
    pages, heads, size, width = cache.shape
    if cache.device.type != "cpu" or cache[0].stride() != (size * width, width, 1):
        return None
    flat = cache.as_strided((pages, heads, size * width), (cache.stride(0), size * width, 1))
    view: npt.NDArray[np.generic] = (
        flat.view(torch.uint16).numpy() if cache.dtype == torch.bfloat16 else flat.numpy()
    )
    return view


@dataclass(frozen=True, slots=True)
class Rows:
    """Where n rows come from and go to, int64 [n] each, and their rotation, float32 [n, rot/2] each."""

    source_page: Index
    source_row: Index
    target_page: Index
    target_row: Index
    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]


def restore(
    pages: npt.NDArray[np.generic], rows: Rows, key: Separable, value: Separable, neox: bool = True
) -> None:
    """Restore rows of one layer, in place.

    Args:
        pages: from `as_array`.
        rows: `cos` and `sin` of width 0 leave keys unrotated.
        key, value: packing of the two planes.
        neox: pairing of rotated dimensions, as in `RopeTable`.

    Raises:
        ValueError: arrays of different lengths, or more rotated dimensions than a key has.
    """
    n, half = len(rows.source_page), rows.cos.shape[1]
    if any(len(a) != n for a in (rows.source_row, rows.target_page, rows.target_row, rows.cos, rows.sin)):
        raise ValueError(f"rows of different lengths; all must have {n}")
    if 2 * half > len(key.dim):
        raise ValueError(f"{2 * half} rotated dimensions; a key has {len(key.dim)}")
    first = np.arange(half) if neox else np.arange(0, 2 * half, 2)
    second = first + (half if neox else 1)
    rest = key.dim[2 * half :]
    kernel = _restore_bf16 if pages.dtype == np.uint16 else _restore_f32
    kernel(
        pages,
        rows.source_page,
        rows.source_row,
        rows.target_page,
        rows.target_row,
        rows.cos,
        rows.sin,
        key.token,
        key.dim[first],
        key.dim[second],
        rest,
        value.token,
        value.dim,
    )


@numba.njit(parallel=True, cache=True, nogil=True)
def _restore_f32(pages, sp, sr, tp, tr, cos, sin, kt, k1, k2, k3, vt, vd):  # type: ignore[no-untyped-def]
    n, heads, half = len(sp), pages.shape[1], len(k1)
    for chunk in numba.prange((n + CHUNK - 1) // CHUNK):
        for i in range(chunk * CHUNK, min(n, (chunk + 1) * CHUNK)):
            ks, kd, vs, vo = kt[sr[i]], kt[tr[i]], vt[sr[i]], vt[tr[i]]
            for h in range(heads):
                s = pages[sp[i], h]
                d = pages[tp[i], h]
                for j in range(half):
                    x = s[ks + k1[j]]
                    y = s[ks + k2[j]]
                    d[kd + k1[j]] = x * cos[i, j] - y * sin[i, j]
                    d[kd + k2[j]] = y * cos[i, j] + x * sin[i, j]
                for j in range(len(k3)):
                    d[kd + k3[j]] = s[ks + k3[j]]
                for j in range(len(vd)):
                    d[vo + vd[j]] = s[vs + vd[j]]


@numba.njit(inline="always")
def _widen(bits):  # type: ignore[no-untyped-def]
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@numba.njit(inline="always")
def _narrow(number):  # type: ignore[no-untyped-def]
    # Round to nearest, ties to even, as torch does.
    bits = np.float32(number).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16(bits >> np.uint32(16))


@numba.njit(parallel=True, cache=True, nogil=True)
def _restore_bf16(pages, sp, sr, tp, tr, cos, sin, kt, k1, k2, k3, vt, vd):  # type: ignore[no-untyped-def]
    n, heads, half = len(sp), pages.shape[1], len(k1)
    for chunk in numba.prange((n + CHUNK - 1) // CHUNK):
        for i in range(chunk * CHUNK, min(n, (chunk + 1) * CHUNK)):
            ks, kd, vs, vo = kt[sr[i]], kt[tr[i]], vt[sr[i]], vt[tr[i]]
            for h in range(heads):
                s = pages[sp[i], h]
                d = pages[tp[i], h]
                for j in range(half):
                    x = _widen(s[ks + k1[j]])
                    y = _widen(s[ks + k2[j]])
                    d[kd + k1[j]] = _narrow(x * cos[i, j] - y * sin[i, j])
                    d[kd + k2[j]] = _narrow(y * cos[i, j] + x * sin[i, j])
                for j in range(len(k3)):
                    d[kd + k3[j]] = s[ks + k3[j]]
                for j in range(len(vd)):
                    d[vo + vd[j]] = s[vs + vd[j]]
