"""The default, and the reference that recomputes everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from tokendance_engine.reuse.backends.interface import Backend
from tokendance_engine.reuse.backends.options import Option, Whole
from tokendance_engine.reuse.selection import Mask, Reused, blocks, first_of_each

LEAST = 8
"""Tokens of each block below which recomputing is hardly better than not recomputing."""


class Master(Backend):
    """Reuse the shared transcript's KV; recompute the first tokens of each block, as many as fidelity says."""

    name = "master"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"first": Whole(None)}
    reference = False

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        return first_of_each(found, self.whole("first"), size)

    def within(self, found: Sequence[Reused], most: int) -> Backend:
        first, each = self.whole("first"), most // max(1, blocks(found))
        return self if each >= first else Master(first=max(each, min(first, LEAST)))


class Everything(Backend):
    """Recompute every restored position: the reference, equal to a full prefill."""

    name = "all"

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        marked = np.zeros(size, dtype=bool)
        for segment in found:
            marked[segment.start : segment.end] = True
        return marked
