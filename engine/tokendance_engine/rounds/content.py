"""Which session an untagged request belongs to: the one it has most text in common with."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

from tokendance_engine.segments.key import Segment, SegmentKey

PREFIX = "~auto:"
"""Of every name given here; no id that a client may send begins so."""


class ContentSessions:
    """Names sessions by content. What a tenant sends is never compared with another tenant's.

    A prompt's first segment does not count (it is what vLLM's prefix cache shares anyway, and all applications of a
    server may have it in common), nor does its last, which holds the question.

    Args:
        least: tokens that two requests must have in common to belong together.
        limit: most segments remembered; the least recently used go first.
    """

    def __init__(self, least: int, limit: int = 1 << 16) -> None:
        self._least = least
        self._limit = limit
        self._sessions: OrderedDict[tuple[Hashable, SegmentKey], str] = OrderedDict()
        self._ids = itertools.count(1)

    def name(self, tenant: Hashable, segments: Sequence[Segment]) -> str:
        """The session of a request with these segments, which its own segments belong to from now on.

        Args:
            tenant: requests of different ones (salt, adapter) never meet.
        """
        common: Counter[str] = Counter()
        mine = {segment.key: len(segment) for segment in segments[1:-1]}
        for key, size in mine.items():
            session = self._sessions.get((tenant, key))
            if session is not None:
                self._sessions.move_to_end((tenant, key))
                common[session] += size
        best = max(common, key=lambda name: common[name], default=None)
        if best is None or common[best] < self._least:
            best = f"{PREFIX}{next(self._ids)}"
        for key in mine:
            self._sessions.setdefault((tenant, key), best)
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
        return best
