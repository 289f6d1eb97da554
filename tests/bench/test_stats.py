"""Medians, quantiles and intervals of benchmarks."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_bench import stats

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_quantiles_are_linear_between_neighbours() -> None:
    assert stats.quantile([4, 1, 3, 2], 0.5) == 2.5
    assert stats.quantile([1, 2, 3], 1) == 3
    assert stats.quantile([7], 0.3) == 7


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1)])
def test_a_quantile_of_nothing_or_outside_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        stats.quantile(values, share)


@given(numbers)
def test_the_half_quantile_is_the_median(values: list[float]) -> None:
    assert stats.quantile(values, 0.5) == pytest.approx(statistics.median(values))


@given(numbers)
def test_the_interval_of_the_median_holds_the_median(values: list[float]) -> None:
    low, high = stats.median_interval(values)
    assert low <= statistics.median(values) <= high


def test_the_interval_of_the_median_is_the_binomial_one() -> None:
    # n = 20: P(at most 5 of 20 below the median) = 2.07 %, so the 6th smallest and the 6th largest bound it.
    assert stats.median_interval(range(1, 21)) == (6, 15)
    # Five values can promise 93.75 % at most: all of them.
    assert stats.median_interval([1, 2, 3, 4, 5]) == (1, 5)


def test_the_interval_of_the_median_covers_as_often_as_it_says() -> None:
    rng = random.Random(3)
    hits = 0
    for _ in range(400):
        low, high = stats.median_interval([rng.gauss(0, 1) for _ in range(25)])
        hits += low <= 0 <= high
    assert hits >= 372  # 93 %: three standard errors below 95 %


def test_wilson_is_the_published_interval() -> None:
    low, high = stats.wilson(1, 10)
    assert (round(low, 4), round(high, 4)) == (0.0179, 0.4042)
    assert stats.wilson(0, 10)[0] == 0
    assert stats.wilson(10, 10)[1] == 1


@pytest.mark.parametrize(("hits", "of"), [(0, 0), (3, 2), (-1, 4)])
def test_wilson_refuses_what_is_no_count(hits: int, of: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        stats.wilson(hits, of)


def test_bootstrap_is_repeatable_and_holds_the_statistic() -> None:
    values = [1.0, 1.1, 0.9, 1.2, 0.8, 1.05]
    low, high = stats.bootstrap(values)
    assert (low, high) == stats.bootstrap(values)
    assert low < statistics.fmean(values) < high
    assert stats.bootstrap([2.0, 2.0]) == (2.0, 2.0)


def test_the_upper_bound_lies_above_the_median_and_shrinks_with_more_values() -> None:
    rng = random.Random(1)
    few, many = ([rng.gauss(1, 0.1) for _ in range(n)] for n in (20, 400))
    assert stats.upper95(few) >= statistics.median(few)
    assert stats.upper95(many) - statistics.median(many) < stats.upper95(few) - statistics.median(few)


def test_spread_is_none_where_all_are_equal() -> None:
    assert stats.spread([3.0, 3.0, 3.0]) == 0
    assert stats.spread([1.0, 2.0, 3.0]) == pytest.approx(0.25)
