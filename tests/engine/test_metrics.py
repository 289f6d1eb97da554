"""The metrics' catalogue and records: bounded labels, and the same sums however steps and workers are merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.observe.metrics import (
    CATALOGUE,
    OTHER,
    Record,
    Recorder,
    empty,
    is_empty,
    merge,
    metrics_table,
    summary,
)
from tokendance_sdk.protocol import FallbackReason

COUNTS = [
    (name, value) for name, m in CATALOGUE.items() if m.kind == "counter" for value in (*m.values, OTHER)
]
HISTOGRAMS = [name for name, m in CATALOGUE.items() if m.kind == "histogram"]


def record(events: list[tuple[int, int]], source: str = "a") -> Record:
    made = Recorder()
    for which, n in events:
        name, value = COUNTS[which % len(COUNTS)]
        made.count(name, n, value)
        made.observe(HISTOGRAMS[which % len(HISTOGRAMS)], float(n))
        made.level("stored_bytes", n, source)
    return made.take() or empty()


def test_what_is_not_in_the_catalogue_cannot_be_recorded() -> None:
    made = Recorder()
    for act in (lambda: made.count("x"), lambda: made.observe("x", 1.0), lambda: made.level("x", 1, "a")):
        with pytest.raises(KeyError):
            act()


def test_a_label_that_nobody_listed_counts_as_other() -> None:
    made = Recorder()
    made.count("fallbacks", label="whatever a client sent")
    made.count("fallbacks", label=FallbackReason.ALONE)
    made.count("fallbacks")
    taken = made.take()
    assert taken is not None
    assert taken["counted"] == {"fallbacks": {OTHER: 2, "alone": 1}}


def test_nothing_is_taken_when_nothing_happened() -> None:
    made = Recorder()
    made.count("fallbacks", 0, "alone")
    assert made.take() is None
    made.count("approximate_pages", 3)
    assert made.take() == {"observed": {}, "counted": {"approximate_pages": {"": 3}}, "levels": {}}
    assert made.take() is None


events = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


@given(events, events, events)
def test_records_merge_in_any_grouping_and_nothing_is_changed_by_it(
    one: list[tuple[int, int]], two: list[tuple[int, int]], three: list[tuple[int, int]]
) -> None:
    records = [record(one), record(two, "b"), record(three)]
    left = merge(merge(records[0], records[1]), records[2])
    right = merge(records[0], merge(records[1], records[2]))
    assert left == right
    assert records == [record(one), record(two, "b"), record(three)]
    total = sum(n for _, n in one + two + three)
    assert sum(sum(c.values()) for c in left["counted"].values()) == total
    assert is_empty(left) == (not one + two + three)


def test_a_level_is_the_sum_of_what_each_worker_said_last() -> None:
    both = merge(record([(0, 3)], "worker 0"), record([(0, 5)], "worker 1"))
    later = merge(both, record([(0, 4)], "worker 0"))
    assert later["levels"]["stored_bytes"] == {"worker 0": 4, "worker 1": 5}
    assert summary(later)["stored_bytes"] == 9


def test_the_table_names_every_family_and_all_reasons() -> None:
    table = metrics_table()
    assert all(f"`vllm:tokendance_{name}" in table for name in CATALOGUE)
    assert all(f"`{reason}`" in table for reason in FallbackReason)
