"""Block-sparse indexes: sorted, exact, and small."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokendance_engine.storage.blocks import BlockIndex, expand, runs
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.positions import Positions

FLAGS = st.integers(0, 200).flatmap(lambda n: arrays(bool, n))


@given(FLAGS)
def test_an_index_lists_exactly_the_stored_rows_in_order(stored: np.ndarray) -> None:
    index = BlockIndex.of(stored)
    index.check()
    assert np.array_equal(index.tokens(), np.flatnonzero(stored))
    assert np.array_equal(index.flags(len(stored)), stored)
    assert index.rows == stored.sum()


@given(FLAGS)
def test_only_blocks_with_a_stored_row_are_listed(stored: np.ndarray) -> None:
    index = BlockIndex.of(stored)
    assert index.blocks.tolist() == sorted({int(i) // 16 for i in np.flatnonzero(stored)})
    assert index.per_block().tolist() == [int(stored[b * 16 : b * 16 + 16].sum()) for b in index.blocks]
    assert index.nbytes == 6 * len(index.blocks)


@pytest.mark.parametrize("token", [0, 15, 16, 99])
def test_one_row_in_the_first_or_last_place_of_a_block_is_found(token: int) -> None:
    stored = np.arange(100) == token
    assert BlockIndex.of(stored).tokens().tolist() == [token]


@given(FLAGS)
def test_runs_cover_the_flags_and_expand_gives_them_back(flags: np.ndarray) -> None:
    found = runs(flags)
    assert np.array_equal(expand(found[:, 0], found[:, 1] - found[:, 0]), np.flatnonzero(flags))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


def test_expanding_runs_of_unequal_number_is_refused() -> None:
    with pytest.raises(ShapeError, match="2 starts and 1 lengths"):
        expand(np.array([1, 2]), np.array([1]))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(-20, 300)), min_size=1, max_size=6))
def test_positions_with_jumps_come_back_for_every_token(pieces: list[tuple[int, int]]) -> None:
    offsets = np.repeat([o for _, o in pieces], [n for n, _ in pieces])
    wanted = np.arange(len(offsets)) + offsets
    positions = Positions.of(wanted)
    assert np.array_equal(positions.at(np.arange(len(wanted))), wanted)
    assert len(positions.steps) <= len(pieces)
