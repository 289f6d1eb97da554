"""The Triton restore, interpreted, does what the torch specification says; it is compiled in `test_triton_compile`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_cases import LAYOUTS, PlaneCase, assert_planes, bits

pytest.importorskip("triton")

from tokendance_engine.kernels import launch
from tokendance_engine.kernels.planes import Overlay, Planes
from tokendance_engine.kernels.reference import restore_planes


def run(case: PlaneCase, overlay: Overlay | None = None) -> Planes:
    """The planes after the kernel."""
    planes = case.copy() if case.planes.key is not None and case.planes.value is not None else None
    if planes is None:
        planes = Planes(*(None if t is None else t.clone() for t in (case.planes.key, case.planes.value)))
    launch.restore(planes, planes, case.rows, overlay, interpret=True)
    return planes


def rotated(case: PlaneCase) -> int:
    return 2 * case.rows.half


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_equals_the_specification_in_every_layout(layout: str, dtype: torch.dtype) -> None:
    case = PlaneCase.draw(layout, dtype)
    wanted = restore_planes(case.planes, case.planes, case.rows)
    got = run(case)
    assert not torch.equal(wanted.key, case.planes.key)
    assert_planes(got, wanted, rotated(case))


@pytest.mark.parametrize(("dim", "rot"), [(64, 0), (80, 32), (96, 96), (128, 64), (256, 256)])
@pytest.mark.parametrize("neox", [True, False])
def test_it_rotates_any_share_of_any_head_size_in_both_pairings(dim: int, rot: int, neox: bool) -> None:
    case = PlaneCase.draw(dim=dim, rot=rot, neox=neox, n=9)
    wanted = restore_planes(case.planes, case.planes, case.rows)
    other = restore_planes(
        case.planes, case.planes, PlaneCase.draw(dim=dim, rot=rot, neox=not neox, n=9).rows
    )
    assert torch.equal(wanted.key, other.key) == (rot == 0)
    assert_planes(run(case), wanted, rot)


@given(
    n=st.integers(0, 40),
    heads=st.integers(1, 3),
    size=st.sampled_from([16, 24, 32]),
    half=st.integers(1, 20),
    rest=st.integers(0, 9),
    neox=st.booleans(),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=15)
def test_odd_sizes_are_restored_too(
    n: int, heads: int, size: int, half: int, rest: int, neox: bool, layout: str, seed: int
) -> None:
    case = PlaneCase.draw(
        layout, n=n, heads=heads, size=size, dim=2 * half + rest, rot=2 * half, neox=neox, seed=seed
    )
    assert_planes(run(case), restore_planes(case.planes, case.planes, case.rows), 2 * half)


def test_rows_that_are_no_target_keep_their_bits() -> None:
    case = PlaneCase.draw(n=5)
    got = run(case)
    kept = torch.ones(7, 16, dtype=torch.bool)
    kept[case.rows.target_page, case.rows.target_row] = False
    for after, before in zip(got.each(), case.planes.each(), strict=True):
        assert torch.equal(bits(after.transpose(1, 2)[kept]), bits(before.transpose(1, 2)[kept]))
        assert not torch.equal(bits(after), bits(before))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stored_rows_take_the_place_of_the_masters_bit_for_bit(dtype: torch.dtype) -> None:
    case = PlaneCase.draw(dtype=dtype, dim=80, rot=32)
    overlay = case.overlay()
    assert overlay.key is not None
    got = run(case, overlay)
    assert_planes(got, restore_planes(case.planes, case.planes, case.rows, overlay), 32)
    at = (overlay.index >= 0).nonzero().squeeze(1)
    rows = got.key[case.rows.target_page[at], :, case.rows.target_row[at]]
    assert torch.equal(bits(rows), bits(overlay.key[overlay.index[at].long()]))


def test_packed_rows_in_the_masters_frame_are_rotated_with_it() -> None:
    case = PlaneCase.draw(dim=80, rot=32)
    moved, still = case.overlay(rotate=True), case.overlay(rotate=False)
    wanted = restore_planes(case.planes, case.planes, case.rows, moved)
    assert not torch.equal(wanted.key, restore_planes(case.planes, case.planes, case.rows, still).key)
    assert_planes(run(case, moved), wanted, 32)


@pytest.mark.parametrize("absent", ["key", "value"])
def test_a_single_plane_is_restored_alone(absent: str) -> None:
    case = PlaneCase.draw().without(absent)
    assert_planes(run(case), restore_planes(case.planes, case.planes, case.rows), rotated(case))


def test_a_dense_master_is_scattered_into_pages() -> None:
    """The source may be rows outside the pages, of another layout."""
    case = PlaneCase.draw(n=30)
    generator = torch.Generator().manual_seed(9)
    dense = Planes.dense(*(torch.randn(2, 30, 2, 64, generator=generator)))
    page, row = torch.zeros(30, dtype=torch.int64), torch.arange(30).flip(0)
    rows = type(case.rows)(
        page, row, case.rows.target_page, case.rows.target_row, case.rows.cos, case.rows.sin
    )
    planes = case.copy()
    launch.restore(dense, planes, rows, interpret=True)
    assert_planes(planes, restore_planes(dense, case.planes, rows), 64)
    assert torch.equal(planes.value[rows.target_page[3], :, rows.target_row[3]], dense.value[0, :, 26])
