"""Fillers are computed as second copies of rows in the middle of what precedes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.reuse.fillers import SINKS, repeated, runs_with_fillers
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame

TOKENS = np.arange(400, dtype=np.int32)
PAGES = np.arange(100, dtype=np.int32)


def test_a_span_with_fillers_becomes_three_runs() -> None:
    runs = runs_with_fillers([(100, 160)], TOKENS, PAGES, Frame(), Filling(((120, 10),)))
    assert [(r.start, r.end, r.to) for r in runs] == [(100, 120, 100), (59, 69, 120), (130, 160, 130)]
    assert runs[1].tokens.tolist() == list(range(59, 69))


def test_repeated_rows_keep_their_own_positions_across_a_step() -> None:
    runs = runs_with_fillers([(120, 130)], TOKENS, PAGES, Frame(((64, 32),)), Filling(((120, 10),)))
    assert [(r.start, r.end, r.shift, r.to) for r in runs] == [(59, 64, 0, 120), (64, 69, 32, 125)]


def test_a_cut_run_keeps_its_place() -> None:
    [run] = runs_with_fillers([(120, 130)], TOKENS, PAGES, Frame(), Filling(((120, 10),)))
    head, tail = run.split(4)
    assert (*head.written(), *tail.written()) == tuple(range(120, 130))
    assert (tail.start, tail.end) == (63, 69)


@pytest.mark.parametrize(("first", "count"), [(SINKS + 9, 5), (3, 2), (0, 1)])
def test_too_short_a_context_has_its_fillers_computed_as_they_are(first: int, count: int) -> None:
    filling = Filling(((first, count),))
    assert repeated(filling, first, count) is None
    [run] = runs_with_fillers([(first, first + count)], TOKENS, PAGES, Frame(), filling)
    assert (run.start, run.end, run.to) == (first, first + count, first)


@given(st.data())
def test_every_token_is_written_once_and_fillers_repeat_earlier_rows(data: st.DataObject) -> None:
    inserts, at = [], 0
    for _ in range(data.draw(st.integers(0, 4))):
        at += data.draw(st.integers(0, 80))
        count = data.draw(st.integers(1, 15))
        inserts.append((at, count))
        at += count
    cuts = sorted(data.draw(st.lists(st.integers(0, 399), max_size=8)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    runs = runs_with_fillers(spans, TOKENS, PAGES, Frame(), Filling(tuple(inserts)))
    written = np.concatenate([np.zeros(0, dtype=np.int64), *(r.written() for r in runs)])
    assert written.tolist() == [i for a, b in spans for i in range(a, b)]
    read = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(r.start, r.end) for r in runs)])
    assert (read <= written).all()
    fillers = {i for first, n in inserts for i in range(first, first + n)}
    for row, to in zip(read.tolist(), written.tolist(), strict=True):
        assert row == to or (to in fillers and row >= SINKS and row not in fillers)
    assert all(r.tokens.tolist() == list(range(r.start, r.end)) for r in runs)
