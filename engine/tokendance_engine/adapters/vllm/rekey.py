"""Other keys for approximate pages, so that vLLM's prefix cache never serves them as exact.

vLLM keys a page by a hash chained over the tokens before it. From the page of a request's first approximate token on,
the chain is salted: nobody but a request that is given the same salts at the same pages can find those pages.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from vllm.v1.core.kv_cache_utils import BlockHash

from tokendance_engine.segments.key import Tokens

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Point:
    """The chain is salted from page `page` on."""

    page: int
    salt: bytes

    @classmethod
    def fresh(cls, page: int) -> Point:
        """With a salt nobody else has."""
        return cls(page, os.urandom(16))


@dataclass(frozen=True, slots=True)
class Chain:
    """How the pages of a member's last context are keyed.

    Attributes:
        tokens: the context, prompt and answer.
        points: where the chain is salted, ascending.
    """

    tokens: Tokens
    points: tuple[Point, ...] = field(default=())

    def usable(self, prompt: Tokens, page_size: int) -> list[Point]:
        """The points that lie in what a new prompt has in common with this context."""
        n = min(len(prompt), len(self.tokens))
        different = np.flatnonzero(prompt[:n] != self.tokens[:n])
        common = int(different[0]) if len(different) else n
        return [p for p in self.points if (p.page + 1) * page_size <= common]


def rekey(request: Request, point: Point) -> None:
    """Salt a request's key chain from a page on; keys before it stay as they are.

    Raises:
        ValueError: the page is not a full page of the request, so it has no key yet.
    """
    keys = request.block_hashes
    page = point.page
    if page >= len(keys):
        raise ValueError(f"page {page} has no key; the request has {len(keys)} full pages")
    parent = bytes(keys[page - 1]) if page else b""
    salted = hashlib.sha256(parent + point.salt + bytes(keys[page])).digest()
    del keys[page:]
    keys.append(BlockHash(salted))
    request.update_block_hashes()


def unkey(request: Request, points: list[Point]) -> None:
    """Recompute a request's keys with only these points."""
    request.block_hashes.clear()
    request.update_block_hashes()
    for point in points:
        rekey(request, point)
