"""Ways to lay K and V out inside a page and head, like those of vLLM's CPU backend.

A packing is two int64 tables [page size, dim]: where element (token, dim) of the key and of the value plane lies in
the flattened interior of 2 * page size * dim elements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Packing = tuple[torch.Tensor, torch.Tensor]


def rows(size: int, dim: int) -> Packing:
    """Key and value of a token side by side: the interior is [token, key dims then value dims]."""
    token, at = torch.arange(size)[:, None], torch.arange(dim)[None]
    return token * 2 * dim + at, token * 2 * dim + dim + at


def transposed(size: int, dim: int) -> Packing:
    """Keys [dim, token], then values [token, dim]: the vector kernels' layout."""
    token, at = torch.arange(size)[:, None], torch.arange(dim)[None]
    return at * size + token, size * dim + token * dim + at


def tiles(size: int, dim: int) -> Packing:
    """AMX-like: key tiles of 16 tokens with dims in pairs, value tiles of 16 dims with tokens in pairs."""
    token, at = torch.arange(size)[:, None], torch.arange(dim)[None]
    key = token // 16 * 16 * dim + at // 2 * 32 + token % 16 * 2 + at % 2
    value = at // 16 * 16 * size + token // 2 * 32 + at % 16 * 2 + token % 2
    return key, size * dim + value


PACKINGS: dict[str, Callable[[int, int], Packing]] = {"rows": rows, "transposed": transposed, "tiles": tiles}
