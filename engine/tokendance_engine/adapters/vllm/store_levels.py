"""What a worker's store tells the metrics: its sizes, and how much its counts grew since it was last asked."""

from __future__ import annotations

import time
from collections.abc import Callable

from tokendance_engine.observe.metrics import Record, Recorder
from tokendance_engine.storage.report import StoreReport

_EVERY_S = 1.0
"""Sizes are summed over all families, so not in every step."""


class StoreLevels:
    """Reports of one worker's store.

    Args:
        report: asks the store.
        source: names this worker.
        clock: seconds.
    """

    def __init__(
        self, report: Callable[[], StoreReport], source: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report = report
        self._source = source
        self._clock = clock
        self._next = 0.0
        self._levels: tuple[int, int] | None = None
        self._seen: dict[tuple[str, str | None], int] = {}

    def take(self) -> Record | None:
        """What changed since the last call, or None; looks at most once a second."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + _EVERY_S
        made, recorder = self._report(), Recorder()
        levels = (made.used, sum(family.dense_bytes for family in made.families.values()))
        if levels != self._levels:
            self._levels = levels
            recorder.level("stored_bytes", levels[0], self._source)
            recorder.level("stored_dense_bytes", levels[1], self._source)
        counts: dict[tuple[str, str | None], int] = {
            ("store_evictions", "budget"): made.counts.evicted,
            ("store_evictions", "idle"): made.counts.expired,
        }
        if made.tier is not None:
            counts["tier_lookups", "hit"] = made.tier.hits
            counts["tier_lookups", "miss"] = made.tier.misses
            counts.update({("corruptions", reason): n for reason, n in made.tier.broken.items()})
        for (name, label), n in counts.items():
            recorder.count(name, n - self._seen.get((name, label), 0), label)
        self._seen = counts
        return recorder.take()
