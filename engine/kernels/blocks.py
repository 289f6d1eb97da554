"""Block-sparse rows: storage blocks of 16 rows with one bit a row, independent of vLLM's page size.

One sorted index serves K, V and all layers: whoever compares layers combines their masks with `|`.
"""

from __future__ import annotations

import torch

BLOCK = 16
"""Rows of a storage block; bit r of its mask stands for its row r."""


def block_masks(changed: torch.Tensor) -> torch.Tensor:
    """Rows as bits of their blocks.

    Args:
        changed: bool [n]; the last block may be partial.

    Returns:
        int32 [ceil(n / 16)].

    >>> block_masks(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.int32)
    """
    blocks = -(-len(changed) // BLOCK)
    whole = torch.zeros(blocks * BLOCK, dtype=torch.int32, device=changed.device)
    whole[: len(changed)] = changed.to(torch.int32)
    return (whole.view(blocks, BLOCK) << _bits(changed.device)).sum(1, dtype=torch.int32)


def changed_rows(masks: torch.Tensor, n: int) -> torch.Tensor:
    """The inverse of `block_masks`: bool [n]."""
    bits = (masks[:, None] >> _bits(masks.device)) & 1
    return bits.flatten()[:n].bool()


def present_rows(masks: torch.Tensor, n: int) -> torch.Tensor:
    """Row numbers whose bit is set, ascending: int64 [present]; the order in which rows are packed.

    On a GPU this waits for the device.
    """
    return changed_rows(masks, n).nonzero().squeeze(1)


def overlay_index(masks: torch.Tensor, n: int) -> torch.Tensor:
    """For each of n rows its packed row, or -1: int32 [n].

    >>> overlay_index(torch.tensor([5], dtype=torch.int32), 4)
    tensor([ 0, -1,  1, -1], dtype=torch.int32)
    """
    changed = changed_rows(masks, n)
    index = changed.cumsum(0) - 1
    return torch.where(changed, index, -1).to(torch.int32)


def changed_pages(masks: torch.Tensor, page_size: int) -> torch.Tensor:
    """Which pages hold a changed row, if row 0 is the first of a page: bool [ceil(16 * blocks / page size)].

    Raises:
        ValueError: a page size that is not a multiple of 16.
    """
    if page_size <= 0 or page_size % BLOCK:
        raise ValueError(f"page size {page_size}; allowed: positive multiples of {BLOCK}")
    each = page_size // BLOCK
    pages = -(-len(masks) // each)
    whole = torch.zeros(pages * each, dtype=torch.bool, device=masks.device)
    whole[: len(masks)] = masks != 0
    return whole.view(pages, each).any(1)


def _bits(device: torch.device) -> torch.Tensor:
    return torch.arange(BLOCK, dtype=torch.int32, device=device)
