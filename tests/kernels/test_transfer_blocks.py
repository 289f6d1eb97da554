"""Masks of 16-row blocks are another way to write which rows are there."""

from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.kernels import blocks

rows = st.lists(st.booleans(), max_size=70).map(lambda x: torch.tensor(x, dtype=torch.bool))


def test_the_examples_in_the_documentation_are_true() -> None:
    result = doctest.testmod(blocks, extraglobs={"torch": torch})
    assert result.attempted >= 2
    assert result.failed == 0


@given(rows)
def test_masks_give_the_rows_back(changed: torch.Tensor) -> None:
    masks = blocks.block_masks(changed)
    assert len(masks) == -(-len(changed) // 16)
    assert torch.equal(blocks.changed_rows(masks, len(changed)), changed)
    assert blocks.present_rows(masks, len(changed)).tolist() == [i for i, c in enumerate(changed) if c]


@given(rows)
def test_the_overlay_index_counts_the_rows_that_are_there(changed: torch.Tensor) -> None:
    index = blocks.overlay_index(blocks.block_masks(changed), len(changed))
    assert index.dtype == torch.int32
    assert torch.equal(index >= 0, changed)
    assert index[changed].tolist() == list(range(int(changed.sum())))


@given(rows, rows)
def test_masks_of_two_layers_are_joined_bit_by_bit(a: torch.Tensor, b: torch.Tensor) -> None:
    n = min(len(a), len(b))
    joined = blocks.block_masks(a[:n]) | blocks.block_masks(b[:n])
    assert torch.equal(joined, blocks.block_masks(a[:n] | b[:n]))


def test_every_row_of_a_block_has_a_bit_of_its_own() -> None:
    masks = [int(blocks.block_masks(torch.arange(16) == row)[0]) for row in range(16)]
    assert masks == [1 << row for row in range(16)]


@given(rows, st.sampled_from([16, 32, 128]))
def test_a_page_is_changed_when_one_of_its_rows_is(changed: torch.Tensor, size: int) -> None:
    pages = blocks.changed_pages(blocks.block_masks(changed), size)
    assert pages.tolist() == [bool(part.any()) for part in changed.split(size) if len(part)]


@pytest.mark.parametrize("size", [0, -16, 8, 24])
def test_page_sizes_that_cut_a_block_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"page size {size}; allowed: positive multiples of 16"):
        blocks.changed_pages(torch.zeros(1, dtype=torch.int32), size)
