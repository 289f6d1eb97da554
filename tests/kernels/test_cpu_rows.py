"""Rows out of packed pages and back, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from page_packings import PACKINGS
from plane_cases import bits

pytest.importorskip("numba")

from tokendance_engine.kernels.cpu_planes import PackedPlane, Separable
from tokendance_engine.kernels.cpu_rows import gather, scatter

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def plane_of(cache: torch.Tensor, packing: str, which: int) -> tuple[PackedPlane, torch.Tensor]:
    size, dim = cache.shape[2], cache.shape[3] // 2
    at = PACKINGS[packing](size, dim)[which]
    separable = Separable.of(at.flatten(), size)
    assert separable is not None
    plane = PackedPlane.of_pages(cache, separable)
    assert plane is not None
    return plane, at


def cache_of(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random bits, so that every odd number occurs, NaNs included."""
    kind = {2: torch.int16, 4: torch.int32}[torch.empty(0, dtype=dtype).element_size()]
    limit = torch.iinfo(kind)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limit.min, limit.max, (5, 2, 16, 32), generator=generator, dtype=kind).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("which", [0, 1])
def test_rows_are_gathered_in_order_bit_for_bit(packing: str, which: int, dtype: torch.dtype) -> None:
    cache = cache_of(dtype)
    plane, at = plane_of(cache, packing, which)
    page, row = np.array([3, 0, 3, 4]), np.array([15, 2, 15, 0])
    got = gather(plane, page, row)
    assert got.shape == (4, 2, 16)
    for i in range(4):
        for head in range(2):
            assert torch.equal(bits(got[i, head]), bits(cache[page[i], head].flatten()[at[row[i]]]))


@given(
    packing=st.sampled_from(sorted(PACKINGS)),
    dtype=st.sampled_from(DTYPES),
    slots=st.lists(st.integers(0, 79), max_size=80, unique=True),
)
def test_scattering_what_was_gathered_changes_nothing_and_other_rows_stay(
    packing: str, dtype: torch.dtype, slots: list[int]
) -> None:
    cache = cache_of(dtype)
    before = cache.clone()
    plane, at = plane_of(cache, packing, 1)
    page, row = np.array(slots, dtype=np.int64) // 16, np.array(slots, dtype=np.int64) % 16
    rows = gather(plane, page, row)
    other = torch.ones_like(rows)
    scatter(other, plane, page, row)
    assert torch.equal(gather(plane, page, row), other)
    wanted = before.clone().flatten(2)
    for slot in slots:
        wanted[slot // 16, :, at[slot % 16]] = 1
    assert torch.equal(bits(cache.flatten(2)), bits(wanted))
    scatter(rows, plane, page, row)
    assert torch.equal(bits(cache), bits(before))


def test_dense_rows_are_one_page_of_rows() -> None:
    rows = torch.arange(24.0).view(3, 2, 4)
    plane = PackedPlane.of_rows(rows)
    order = np.array([2, 0])
    assert torch.equal(gather(plane, np.zeros(2, dtype=np.int64), order), rows[[2, 0]])
    scatter(torch.full((1, 2, 4), -1.0), plane, np.array([0]), np.array([1]))
    assert (rows[1] == -1).all()
    assert rows[0, 0, 0] == 0


def test_no_rows_are_no_work() -> None:
    none = np.zeros(0, dtype=np.int64)
    plane, _ = plane_of(cache_of(torch.float32), "tiles", 0)
    assert gather(plane, none, none).shape == (0, 2, 16)
    assert PackedPlane.of_rows(torch.zeros(0, 2, 16)).bits.shape == (1, 2, 0)


def test_pages_that_are_not_contiguous_inside_are_not_taken() -> None:
    at = Separable.of(torch.arange(32), 16)
    assert at is not None
    assert PackedPlane.of_pages(torch.zeros(4, 16, 2, 32).transpose(1, 2), at) is None


def test_what_does_not_fit_is_refused_by_name() -> None:
    plane, _ = plane_of(cache_of(torch.float32), "rows", 0)
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match=r"rows: torch\.float16 .*allowed: contiguous torch\.float32"):
        scatter(torch.zeros(1, 2, 16, dtype=torch.float16), plane, one, one)
    with pytest.raises(ValueError, match=r"rows: torch\.float32 \(1, 2, 8\); allowed: .*\(1, 2, 16\)"):
        scatter(torch.zeros(1, 2, 8), plane, one, one)
    with pytest.raises(ValueError, match="allowed: two int64 arrays of one length"):
        gather(plane, one.astype(np.int32), one)
    with pytest.raises(ValueError, match=r"rows \(3, 4\) on cpu; allowed: contiguous"):
        PackedPlane.of_rows(torch.zeros(3, 4))
