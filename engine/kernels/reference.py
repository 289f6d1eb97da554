"""What the kernels must compute, in plain torch and float32: the specification of every fast path."""

from __future__ import annotations

import torch
from tokendance_engine.kernels.blocks import block_masks
from tokendance_engine.kernels.planes import Overlay, Planes, RowMap


def restore_reference(
    pages: torch.Tensor,
    source_page: torch.Tensor,
    source_row: torch.Tensor,
    target_page: torch.Tensor,
    target_row: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_at: torch.Tensor,
    value_at: torch.Tensor,
    neox: bool = True,
) -> torch.Tensor:
    """Copy n rows of K and V to other rows of the same pages, keys rotated on the way.

    Row i is read at `[source_page[i], :, source_row[i]]` and written at `[target_page[i], :, target_row[i]]`. All
    reads come before all writes, so rows that are both source and target are read as they were. Rotation is done in
    float32 and rounded once to the dtype of the pages (nearest, ties to even); V, and key dimensions beyond the
    rotated ones, keep their bits.

    Args:
        pages: [pages, heads, interior], any float dtype; the flattened inside of a page and head holds both planes.
        source_page, source_row, target_page, target_row: int64 [n].
        cos, sin: float32 [n, rot/2], rot <= dim; rot = 0 leaves keys as they are.
        key_at, value_at: int64 [page size, dim], where element (token, dim) of a plane lies in the interior.
        neox: True when dimension i pairs with i + rot/2; False when 2i pairs with 2i + 1.

    Returns:
        New pages, shape and dtype of `pages`.

    Raises:
        ValueError: more rotated dimensions than a key has.
    """
    half, dim = cos.shape[1], key_at.shape[1]
    if 2 * half > dim:
        raise ValueError(f"{2 * half} rotated dimensions; a key has {dim}")
    out = pages.clone()
    heads = torch.arange(pages.shape[1], device=pages.device)[None, :, None]
    source, target = source_page[:, None, None], target_page[:, None, None]

    key = pages[source, heads, key_at[source_row][:, None]]  # [n, heads, dim]
    value = pages[source, heads, value_at[source_row][:, None]]

    first = torch.arange(half, device=pages.device) * (1 if neox else 2)
    second = first + (half if neox else 1)
    x, y = key[..., first].float(), key[..., second].float()
    c, s = cos[:, None], sin[:, None]
    moved = key.clone()
    moved[..., first] = (x * c - y * s).to(pages.dtype)
    moved[..., second] = (y * c + x * s).to(pages.dtype)

    out[target, heads, key_at[target_row][:, None]] = moved
    out[target, heads, value_at[target_row][:, None]] = value
    return out


def restore_planes(source: Planes, target: Planes, rows: RowMap, overlay: Overlay | None = None) -> Planes:
    """Gather source rows, put packed rows in the place of some, rotate keys, scatter both planes.

    Reads come before writes; rounding as in `restore_reference`. Packed rows whose keys are not to be rotated are
    copied bit for bit.

    Returns:
        New target planes; rows that are no target keep their bits.
    """
    key, value = (None if t is None else t.clone() for t in (target.key, target.value))
    if key is not None and source.key is not None:
        fetched = _gather(source.key, rows.source_page, rows.source_row)
        if overlay is not None and overlay.key is not None and overlay.rotate:
            fetched = _overlaid(fetched, overlay.key, overlay.index)
        moved = rotate_reference(fetched, rows.cos, rows.sin, rows.neox)
        if overlay is not None and overlay.key is not None and not overlay.rotate:
            moved = _overlaid(moved, overlay.key, overlay.index)
        key[rows.target_page, :, rows.target_row] = moved
    if value is not None and source.value is not None:
        fetched = _gather(source.value, rows.source_page, rows.source_row)
        if overlay is not None and overlay.value is not None:
            fetched = _overlaid(fetched, overlay.value, overlay.index)
        value[rows.target_page, :, rows.target_row] = fetched
    return Planes(key, value)


def rotate_reference(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool = True
) -> torch.Tensor:
    """Rotate rows of keys in float32, rounded once to their dtype; dimensions beyond the rotated keep their bits.

    Args:
        keys: [n, heads, dim]; cos, sin: float32 [n, rot/2], rot <= dim.
    """
    half = cos.shape[1]
    first = torch.arange(half, device=keys.device) * (1 if neox else 2)
    second = first + (half if neox else 1)
    x, y = keys[..., first].float(), keys[..., second].float()
    c, s = cos[:, None], sin[:, None]
    moved = keys.clone()
    moved[..., first] = (x * c - y * s).to(keys.dtype)
    moved[..., second] = (y * c + x * s).to(keys.dtype)
    return moved


def diff_reference(source: Planes, target: Planes, rows: RowMap, tolerance: float = 0.0) -> torch.Tensor:
    """Which rows of a mirror (target) differ from its master (source), as block masks int32 [ceil(n / 16)].

    A row differs if any bit of its value does, or of a key dimension that is not rotated, or if a rotated one is
    further from the master's, rotated to the mirror's position and rounded, than `tolerance` (0: differs in value
    bits); a NaN on one side alone, or with other bits, differs.
    """
    changed = torch.zeros(len(rows), dtype=torch.bool, device=rows.source_page.device)
    if source.value is not None and target.value is not None:
        changed |= _bits_differ(
            _gather(source.value, rows.source_page, rows.source_row),
            _gather(target.value, rows.target_page, rows.target_row),
        ).any(2).any(1)  # fmt: skip
    if source.key is not None and target.key is not None:
        old = _gather(source.key, rows.source_page, rows.source_row)
        moved = rotate_reference(old, rows.cos, rows.sin, rows.neox)
        here = _gather(target.key, rows.target_page, rows.target_row)
        differ, rot = _bits_differ(moved, here), 2 * rows.half
        if tolerance > 0:
            near = (moved[..., :rot].float() - here[..., :rot].float()).abs() <= tolerance
            differ[..., :rot] &= ~near
        changed |= differ.any(2).any(1)
    return block_masks(changed)


def pack_reference(source: Planes, page: torch.Tensor, row: torch.Tensor) -> Planes:
    """Rows [present, heads, dim] of each plane, in the order given, as the planes of one page (`Planes.dense`)."""
    return Planes.dense(*(None if t is None else _gather(t, page, row) for t in (source.key, source.value)))


def deviation_reference(source: Planes, target: Planes, rows: RowMap) -> torch.Tensor:
    """How far each position's fresh key (target) is from the reused one (source) moved to its place.

    The sum over heads and dimensions of squared differences, in float32: what CacheBlend (arXiv 2405.16444) ranks
    positions by at its check layer. Keys are rotated in float32 and not rounded before they are compared.

    Returns:
        float32 [n].
    """
    if source.key is None or target.key is None:
        raise ValueError("deviation: planes without keys; keys are what is compared")
    old = _gather(source.key, rows.source_page, rows.source_row).float()
    moved = rotate_reference(old, rows.cos, rows.sin, rows.neox)
    fresh = _gather(target.key, rows.target_page, rows.target_row).float()
    return (fresh - moved).square().sum((1, 2))


def _gather(plane: torch.Tensor, page: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return plane[page, :, row]


def _overlaid(rows: torch.Tensor, packed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out, there = rows.clone(), index >= 0
    out[there] = packed[index[there].long()]
    return out


def _bits_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    bits = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.contiguous().view(bits) != b.contiguous().view(bits)
