"""Medians, quantiles and intervals. Everything here is deterministic: the same numbers give the same answer."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

Z95 = 1.959963984540054


def quantile(values: Sequence[float], share: float) -> float:
    """The `share` quantile (0 to 1), linear between neighbours.

    Raises:
        ValueError: no values, or a share outside 0 to 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"got {len(values)} values and share {share}; allowed: at least 1, and 0 to 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_interval(values: Sequence[float], rank: float = 0.95) -> tuple[float, float]:
    """A distribution-free interval that holds the median with at least `rank`; all values if they are too few."""
    ordered, n = sorted(values), len(values)
    if not n:
        raise ValueError("got 0 values; allowed: at least 1")
    outside = 0.0  # chance that the median lies below the k-th smallest value
    k = 0
    while k < n // 2 and outside + math.comb(n, k) / 2**n <= (1 - rank) / 2:
        outside += math.comb(n, k) / 2**n
        k += 1
    k = max(k - 1, 0)
    return ordered[k], ordered[n - 1 - k]


def bootstrap(
    values: Sequence[float],
    of: Callable[[Sequence[float]], float] = statistics.fmean,
    rank: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Percentile interval of a statistic over resamples (fixed seed)."""
    if not values:
        raise ValueError("got 0 values; allowed: at least 1")
    rng = random.Random(0)
    found = [of(rng.choices(values, k=len(values))) for _ in range(draws)]
    return quantile(found, (1 - rank) / 2), quantile(found, (1 + rank) / 2)


def upper95(values: Sequence[float]) -> float:
    """One-sided 95 % upper bound of the median, by bootstrap."""
    return bootstrap(values, statistics.median, rank=0.90)[1]


def wilson(hits: int, of: int, z: float = Z95) -> tuple[float, float]:
    """Wilson interval of a share.

    Raises:
        ValueError: no trials, or hits outside 0 to `of`.
    """
    if of < 1 or not 0 <= hits <= of:
        raise ValueError(f"got {hits} of {of}; allowed: at least one trial, hits among them")
    share, square = hits / of, z * z
    centre = (share + square / (2 * of)) / (1 + square / of)
    half = z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    # At the ends rounding would leave a hair.
    return (centre - half if hits else 0.0), (centre + half if hits < of else 1.0)


def spread(values: Sequence[float]) -> float:
    """Half the range between the quartiles over the median: how noisy a measurement was (0: not at all)."""
    middle = statistics.median(values)
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 2 / middle if middle else 0.0
