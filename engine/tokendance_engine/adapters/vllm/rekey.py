"""Other keys for approximate pages, so that vLLM's prefix cache never serves them as exact.

vLLM keys a page by a hash chained over the tokens before it. From the page of a request's first approximate token on,
the chain is salted: nobody but a request that is given the same salts at the same pages can find those pages.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from vllm.v1.core.kv_cache_utils import BlockHash

from tokendance_engine.segments.filling import UNFILLED, Filling, fill, strip
from tokendance_engine.segments.frame import IN_PLACE, Frame
from tokendance_engine.segments.key import Tokens

if TYPE_CHECKING:
    from vllm.v1.request import Request


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """The chain is salted from page `page` on."""

    page: int
    salt: bytes

    @classmethod
    def fresh(cls, page: int, method: str = "") -> Point:
        """With a salt nobody else has; it begins with the identity of the backend whose KV is approximate there."""
        return cls(page, method.encode() + os.urandom(16))


@dataclass(frozen=True, slots=True)
class Disposition:
    """How a request's prompt lies in pages: what follows of it must all be the same for pages to be found again.

    Attributes:
        filling: fillers in the prompt.
        frame: where the filled tokens stand.
        points: where the key chain is salted, ascending.
    """

    filling: Filling = UNFILLED
    frame: Frame = IN_PLACE
    points: tuple[Point, ...] = ()

    def is_apart(self, page_size: int) -> bool:
        """Whether no token that is shifted lies in a page that everybody may find."""
        first = min((at for at, _ in self.frame.steps), default=None)
        return first is None or (bool(self.points) and self.points[0].page * page_size <= first)

    def before(self, index: int, page_size: int) -> Disposition:
        """What of it concerns the tokens before a filled index that is a multiple of the page size."""
        return Disposition(
            self.filling.before(index),
            self.frame.before(index),
            tuple(p for p in self.points if p.page * page_size < index),
        )

    def same_pages(self, other: Disposition, page_size: int) -> int:
        """How many leading pages of one prompt have the same keys in both: same tokens, same salts."""
        pages = [at // page_size for at, _ in _differing(self.filling.inserts, other.filling.inserts)]
        pages += [point.page for point in _differing(self.points, other.points)]
        return min(pages, default=1 << 60)


def _differing(one: Sequence[T], two: Sequence[T]) -> list[T]:
    """The first items in which two sequences differ: at most one of each."""
    for a, b in itertools.zip_longest(one, two):
        if a != b:
            return [x for x in (a, b) if x is not None]
    return []


@dataclass(frozen=True, slots=True)
class Chain:
    """A member's last context, as its next round needs it.

    Attributes:
        tokens: prompt and answer, without fillers.
        disposition: how they lay in pages.
        keys: of its full pages, as far as they are known; hashing them again would cost more than all planning.
        method: identity of the backend whose approximate KV is in them; nobody else may find it.
    """

    tokens: Tokens
    disposition: Disposition
    keys: tuple[BlockHash, ...] = ()
    method: str = ""

    @classmethod
    def of(
        cls, tokens: Tokens, disposition: Disposition, keys: Sequence[BlockHash] = (), method: str = ""
    ) -> Chain:
        """From a context with its fillers."""
        return cls(strip(tokens, disposition.filling), disposition, tuple(keys), method)

    def usable_keys(self, prompt: Tokens, lies: Disposition, page_size: int) -> Sequence[BlockHash]:
        """Keys of the leading pages of a prompt that lies so (`usable`): what they hash is the same."""
        end = self._common(prompt) + lies.filling.count
        return self.keys[: min(end // page_size, self.disposition.same_pages(lies, page_size))]

    def usable(self, prompt: Tokens, page_size: int) -> Disposition:
        """What applies to a new prompt: only what lies in the part it has in common with this context.

        Positions are shifted only where keys are salted.
        """
        common = self._common(prompt)
        filling = self.disposition.filling.usable(common)
        end = common + filling.count
        points = tuple(p for p in self.disposition.points if (p.page + 1) * page_size <= end)
        # A round's steps go with its salt: without it, pages of another layout would have the same keys.
        salted = points[0].page * page_size if points else end
        left = self.disposition.points[len(points) :]
        unsalted = min(left[0].page * page_size, end) if left else end
        steps = tuple(s for s in self.disposition.frame.steps if salted <= s[0] < unsalted)
        return Disposition(filling, Frame(steps), points)

    def _common(self, prompt: Tokens) -> int:
        n = min(len(prompt), len(self.tokens))
        different = np.flatnonzero(prompt[:n] != self.tokens[:n])
        return int(different[0]) if len(different) else n


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


def unkey(request: Request, points: Sequence[Point], keep: int = 0) -> None:
    """Recompute a request's keys with only these points.

    Args:
        keep: leading pages whose tokens and points are as they were: their keys stay.
    """
    del request.block_hashes[keep:]
    request.update_block_hashes()
    for point in points:
        if point.page >= keep:
            rekey(request, point)


def lay_out(
    request: Request,
    prompt: Tokens,
    disposition: Disposition,
    filler: int,
    before: Disposition | None = None,
    page_size: int = 0,
    keys: Sequence[BlockHash] = (),
) -> Tokens:
    """Give a request that vLLM has not scheduled yet its fillers and keys.

    The front end keeps the prompt as the user gave it, so usage and echo do not see fillers.

    Args:
        prompt: the user's tokens.
        filler: token id.
        before: how it lies now; None: unknown, so all keys are computed again.
        page_size: tokens per page, with `before`.
        keys: what the keys of its leading pages will be, where that is known.

    Returns:
        The prompt with its fillers.
    """
    keep = before.same_pages(disposition, page_size) if before is not None and page_size else 0
    filled = fill(prompt, disposition.filling, filler)
    if len(filled) != request.num_prompt_tokens or disposition.filling.inserts:
        tokens = filled.tolist()
        request.prompt_token_ids = tokens
        request._all_token_ids[: request.num_prompt_tokens] = tokens
        request.num_prompt_tokens = len(tokens)
    if keys:
        request.block_hashes[:] = keys
        keep = len(keys)
    unkey(request, disposition.points, min(keep, len(request.block_hashes)))
    return filled
