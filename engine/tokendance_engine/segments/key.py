"""Segments of a prompt and their content keys.

A segment is the token run between two boundaries. Its key is a hash of its token ids alone: everything else that
must match (tenant, session, adapter, model) is part of the store the key is looked up in, and token ids are compared
on every hit, so a collision can never serve foreign KV.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
"""Token ids, shape [n], int32."""

SegmentKey = bytes


def segment_key(tokens: Tokens) -> SegmentKey:
    """Content key (16 bytes) of a token run."""
    return hashlib.blake2b(np.ascontiguousarray(tokens, dtype=np.int32).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, end) of one prompt."""

    start: int
    end: int
    key: SegmentKey

    def __len__(self) -> int:
        return self.end - self.start


def split(tokens: Tokens, boundaries: Sequence[int]) -> list[Segment]:
    """Cut a prompt at its boundaries; empty segments are dropped.

    Args:
        tokens: the prompt, shape [n].
        boundaries: ascending offsets in [0, n].

    Raises:
        ValueError: a boundary is out of range or out of order.
    """
    edges = [0, *boundaries, len(tokens)]
    if any(b < a for a, b in itertools.pairwise(edges)):
        raise ValueError(f"boundaries {list(boundaries)[:8]} must ascend within 0..{len(tokens)}")
    return [
        Segment(start, end, segment_key(tokens[start:end]))
        for start, end in itertools.pairwise(edges)
        if end > start
    ]
