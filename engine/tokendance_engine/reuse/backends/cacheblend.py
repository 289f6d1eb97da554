"""CacheBlend (arXiv 2405.16444): recompute the tokens whose keys deviate most at a check layer.

`cacheblend` is the published method, member by member and token by token. `cacheblend-blocks` is its collective form:
one member's deviations serve the whole round, and whole blocks are recomputed, which makes few, long runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from tokendance_engine.reuse.backends.epic import SOURCES, source_of
from tokendance_engine.reuse.backends.interface import Backend, Check, Piece, Scores
from tokendance_engine.reuse.backends.options import Option, Value, Whole
from tokendance_engine.reuse.selection import Mask


class CacheBlend(Backend):
    """The `percent` of a member's reused tokens with the largest deviations."""

    name = "cacheblend"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "percent": Whole(15, 0, 100),
        "layer": Whole(1, 1, 1 << 10),
        "source": SOURCES,
    }

    def __init__(self, **options: Value) -> None:
        super().__init__(**options)
        self.source = source_of(options)
        self.check = Check(self.whole("layer"), "member")

    def expected(self, reused: int) -> int:
        return math.ceil(reused * self.whole("percent") / 100)

    def choose(self, pieces: Sequence[Piece], scores: Sequence[Scores]) -> list[Mask]:
        whole = np.concatenate(scores)
        chosen: Mask = np.zeros(len(whole), dtype=bool)
        chosen[np.argsort(-whole, kind="stable")[: self.expected(len(whole))]] = True
        edges = [0, *itertools.accumulate(map(len, scores))]
        return [chosen[a:b] for a, b in itertools.pairwise(edges)]


class CacheBlendBlocks(CacheBlend):
    """Blocks of `block` tokens with the largest mean deviations, up to `percent` of the tokens, once per round."""

    name = "cacheblend-blocks"
    OPTIONS: ClassVar[Mapping[str, Option]] = {**CacheBlend.OPTIONS, "block": Whole(16, 1, 1 << 10)}

    def __init__(self, **options: Value) -> None:
        super().__init__(**options)
        self.check = Check(self.whole("layer"), "round")

    def choose(self, pieces: Sequence[Piece], scores: Sequence[Scores]) -> list[Mask]:
        marked: list[Mask] = [np.zeros(len(s), dtype=bool) for s in scores]
        blocks = [
            (float(s[a:b].mean()), i, a, b)
            for i, (piece, s) in enumerate(zip(pieces, scores, strict=True))
            for a, b in self._blocks(piece)
        ]
        left = self.expected(sum(map(len, scores)))
        for _, i, a, b in sorted(blocks, key=lambda block: -block[0]):
            if left <= 0:
                break
            marked[i][a:b] = True
            left -= b - a
        return marked

    def _blocks(self, piece: Piece) -> list[tuple[int, int]]:
        """Blocks count from the start of the segment, so that members that have less of it have the same ones."""
        size = self.whole("block")
        edges = [0, *range((-piece.offset) % size or size, len(piece), size), len(piece)]
        return [(a, b) for a, b in itertools.pairwise(edges) if b > a]
