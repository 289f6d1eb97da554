"""The specification itself, checked against loops that nobody could misread."""

from __future__ import annotations

import math

import pytest
import torch
from page_packings import PACKINGS
from tokendance_engine.kernels.reference import restore_reference


@pytest.mark.parametrize("packing", PACKINGS)
def test_packings_used_in_tests_are_permutations_of_a_page(packing: str) -> None:
    key, value = PACKINGS[packing](32, 80)
    assert torch.equal(torch.cat([key.flatten(), value.flatten()]).sort().values, torch.arange(2 * 32 * 80))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_row_is_the_pairwise_rotation_written_out(packing: str, neox: bool) -> None:
    size, dim, half = 16, 16, 4
    key_at, value_at = PACKINGS[packing](size, dim)
    pages = torch.randn(3, 2, 2 * size * dim, generator=torch.Generator().manual_seed(0))
    angles = torch.tensor([[0.1, 0.7, -2.0, 3.0]])
    out = restore_reference(
        pages,
        torch.tensor([1]),
        torch.tensor([3]),
        torch.tensor([2]),
        torch.tensor([5]),
        angles.cos(),
        angles.sin(),
        key_at,
        value_at,
        neox,
    )
    expected = pages.clone()
    for head in range(2):
        for d in range(dim):
            expected[2, head, key_at[5, d]] = pages[1, head, key_at[3, d]]
            expected[2, head, value_at[5, d]] = pages[1, head, value_at[3, d]]
        for j in range(half):
            a, b = (j, j + half) if neox else (2 * j, 2 * j + 1)
            x, y = float(pages[1, head, key_at[3, a]]), float(pages[1, head, key_at[3, b]])
            c, s = math.cos(float(angles[0, j])), math.sin(float(angles[0, j]))
            expected[2, head, key_at[5, a]] = x * c - y * s
            expected[2, head, key_at[5, b]] = y * c + x * s
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)
    written = torch.zeros_like(pages, dtype=torch.bool)
    written[2, :, key_at[5]] = written[2, :, value_at[5]] = True
    assert torch.equal(out[~written], pages[~written])


def test_rows_are_read_before_any_is_written() -> None:
    key_at, value_at = PACKINGS["rows"](16, 16)
    pages = torch.randn(2, 1, 2 * 16 * 16, generator=torch.Generator().manual_seed(0))
    swap = torch.tensor([0, 1]), torch.tensor([2, 9]), torch.tensor([1, 0]), torch.tensor([9, 2])
    none = torch.zeros(2, 0)
    out = restore_reference(pages, *swap, none, none, key_at, value_at)
    assert torch.equal(out[1, 0, key_at[9]], pages[0, 0, key_at[2]])
    assert torch.equal(out[0, 0, value_at[2]], pages[1, 0, value_at[9]])


def test_more_rotated_dimensions_than_a_key_has_are_refused() -> None:
    key_at, value_at = PACKINGS["rows"](16, 16)
    one, wide = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 9)
    with pytest.raises(ValueError, match="18 rotated dimensions; a key has 16"):
        restore_reference(torch.zeros(1, 1, 512), one, one, one, one, wide, wide, key_at, value_at)
