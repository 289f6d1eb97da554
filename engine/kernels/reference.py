"""What the kernels must compute, in plain torch and float32: the specification of every fast path."""

from __future__ import annotations

import torch


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
