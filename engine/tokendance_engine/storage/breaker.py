"""Leaves a failing service alone for a while, so that a dead server costs one time-out and not one a request."""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Open (do not try) for `pause_seconds` after each failure.

    Args:
        clock: seconds.
    """

    def __init__(self, pause_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause_seconds
        self._clock = clock
        self._until = -1.0
        self.failures = 0

    def closed(self) -> bool:
        """Whether the service may be tried."""
        return self._clock() >= self._until

    def failed(self) -> None:
        """It did not answer."""
        self.failures += 1
        self._until = self._clock() + self._pause
