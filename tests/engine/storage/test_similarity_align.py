"""Alignment by content: other orders, other histories, repeats; never a wrong token."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_samples import SMALL, random_rows, random_tokens
from tokendance_engine.storage.rows import Rows, Segment
from tokendance_engine.storage.similarity import GRAM, align, nearest, similarity


def segment(tokens: np.ndarray) -> Segment:
    return Segment(tokens, 0, b"", Rows(random_rows(SMALL, len(tokens), 0)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(GRAM, 60), min_size=1, max_size=8), st.randoms(), st.integers(0, 999))
def test_blocks_in_any_order_after_any_history_are_all_found(
    sizes: list[int], random: object, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [random_tokens(rng, n) for n in sizes]
    order = list(range(len(blocks)))
    random.shuffle(order)  # type: ignore[attr-defined]
    source = np.concatenate([random_tokens(rng, 7), *blocks])
    history = random_tokens(rng, int(rng.integers(0, 50)))
    tokens = np.concatenate([history, *(blocks[i] for i in order), random_tokens(rng, 5)])
    row = align(tokens, source)
    shared = np.arange(len(history), len(tokens) - 5)
    assert (row[shared] >= 0).all()
    assert np.array_equal(source[row[shared]], tokens[shared])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=120), st.lists(st.integers(0, 2), max_size=120))
def test_texts_of_few_different_tokens_never_match_wrongly(a: list[int], b: list[int]) -> None:
    tokens, source = np.array(a, dtype=np.int32), np.array(b, dtype=np.int32)
    row = align(tokens, source)
    hit = np.flatnonzero(row >= 0)
    assert np.array_equal(source[row[hit]], tokens[hit])


def test_a_repeated_block_is_taken_where_its_neighbour_was_found() -> None:
    rng = np.random.default_rng(0)
    label, one, two = (random_tokens(rng, n) for n in (20, 40, 40))
    source = np.concatenate([label, one, label, two])
    assert align(np.concatenate([label, two]), source).tolist() == list(range(60, 120))
    assert align(np.concatenate([two, label]), source)[:40].tolist() == list(range(80, 120))
    assert align(label, source).tolist() == list(range(20))


def test_runs_shorter_than_a_block_are_not_looked_for() -> None:
    text = random_tokens(np.random.default_rng(0), GRAM - 1)
    assert (align(text, text) == -1).all()
    assert similarity(text, text) == 0.0


def test_similarity_is_the_share_of_runs_found() -> None:
    rng = np.random.default_rng(0)
    text, other = random_tokens(rng, 100), random_tokens(rng, 100)
    assert similarity(text, text) == 1.0
    assert similarity(text, other) == 0.0
    assert 0.3 < similarity(np.concatenate([text, other]), text) < 0.6


def test_the_nearest_text_serves_first_and_others_fill_the_rest() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (random_tokens(rng, n) for n in (100, 100, 40))
    near = [segment(np.concatenate([a, b])[:50]), segment(np.concatenate([a, b])[50:])]
    far = [segment(np.concatenate([c, a[:30]]))]
    tokens = np.concatenate([a, b, c])
    found = nearest(tokens, [far, near, [segment(random_tokens(rng, 64))]])
    found.check()
    assert np.array_equal(found.expand()[0], np.arange(240))
    assert [s in found.segments for s in (*near, *far)] == [True, True, True]
    assert len(found.segments) == 3
    assert len(found.runs) == 3


def test_a_run_may_cross_from_one_segment_of_a_text_to_the_next() -> None:
    text = random_tokens(np.random.default_rng(2), 40)
    found = nearest(text[10:30], [[segment(text[:20]), segment(text[20:])]])
    assert found.runs.tolist() == [[0, 10, 0, 10], [10, 10, 1, 0]]
