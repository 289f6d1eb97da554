"""The Triton diff and pack, interpreted, do what the torch specification says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_cases import LAYOUTS, PlaneCase, bits

pytest.importorskip("triton")

from tokendance_engine.kernels import launch
from tokendance_engine.kernels.blocks import changed_rows, present_rows
from tokendance_engine.kernels.planes import KernelArgumentError, Planes
from tokendance_engine.kernels.reference import diff_reference, pack_reference, restore_planes

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def mirror_of(case: PlaneCase, changes: int, seed: int = 0) -> Planes:
    """The restored planes with that many single elements changed in random target rows."""
    mirror = restore_planes(case.planes, case.planes, case.rows)
    generator = torch.Generator().manual_seed(seed)
    for plane in mirror.each():
        for _ in range(changes):
            i = int(torch.randint(len(case.rows), (1,), generator=generator))
            head, dim = (int(torch.randint(plane.shape[x], (1,), generator=generator)) for x in (1, 3))
            plane[case.rows.target_page[i], head, case.rows.target_row[i], dim] += 1
    return mirror


def still(case: PlaneCase) -> PlaneCase:
    """Without rotation, where even the interpreter's bf16 is exact."""
    none = torch.empty(len(case.rows), 0)
    return replace(case, rows=replace(case.rows, cos=none, sin=none))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_finds_exactly_the_rows_that_differ(layout: str, dtype: torch.dtype) -> None:
    case = still(PlaneCase.draw(layout, dtype, n=40))
    mirror = mirror_of(case, 3)
    wanted = diff_reference(case.planes, mirror, case.rows)
    assert 0 < int(changed_rows(wanted, 40).sum()) < 10
    assert torch.equal(launch.diff(case.planes, mirror, case.rows, interpret=True), wanted)


@pytest.mark.parametrize(
    ("dim", "rot", "neox"), [(64, 64, True), (64, 64, False), (80, 32, True), (256, 128, True)]
)
def test_keys_are_compared_at_the_mirrors_positions(dim: int, rot: int, neox: bool) -> None:
    case = PlaneCase.draw(dim=dim, rot=rot, neox=neox, n=14)
    mirror = mirror_of(case, 2)
    wanted = diff_reference(case.planes, mirror, case.rows, 1e-5)
    assert wanted.any()
    assert torch.equal(launch.diff(case.planes, mirror, case.rows, tolerance=1e-5, interpret=True), wanted)
    assert torch.equal(launch.diff(case.planes, mirror, case.rows, interpret=True), wanted)


@given(
    n=st.integers(1, 40),
    heads=st.integers(1, 3),
    half=st.integers(0, 12),
    rest=st.integers(1, 9),
    neox=st.booleans(),
    changes=st.integers(0, 3),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=8)
def test_odd_sizes_are_compared_too(
    n: int, heads: int, half: int, rest: int, neox: bool, changes: int, layout: str, seed: int
) -> None:
    dim = 2 * half + rest
    case = PlaneCase.draw(layout, n=n, heads=heads, dim=dim, rot=2 * half, neox=neox, seed=seed)
    mirror = mirror_of(case, changes, seed)
    wanted = diff_reference(case.planes, mirror, case.rows, 1e-5)
    assert torch.equal(launch.diff(case.planes, mirror, case.rows, tolerance=1e-5, interpret=True), wanted)


@pytest.mark.parametrize("odd", [-0.0, math.nan, math.inf])
def test_bits_are_compared_where_values_would_deceive(odd: float) -> None:
    case = still(PlaneCase.draw(n=18))
    for plane in case.planes.each():
        plane[:3, :, :, 5] = 0.0 if odd == 0 else odd
    mirror = restore_planes(case.planes, case.planes, case.rows)
    assert not launch.diff(case.planes, mirror, case.rows, interpret=True).any()
    mirror.value[case.rows.target_page[17], 1, case.rows.target_row[17], 5] = -0.0 if odd == 0 else 1.0
    got = launch.diff(case.planes, mirror, case.rows, interpret=True)
    assert changed_rows(got, 18).nonzero().tolist() == [[17]]


def test_a_nan_is_never_within_tolerance() -> None:
    case = PlaneCase.draw(n=3)
    mirror = restore_planes(case.planes, case.planes, case.rows)
    mirror.key[case.rows.target_page[1], 0, case.rows.target_row[1], 3] = math.nan
    assert launch.diff(case.planes, mirror, case.rows, tolerance=100.0, interpret=True).tolist() == [0b10]


def test_layers_add_to_one_index() -> None:
    case = still(PlaneCase.draw(n=20))
    first, second = mirror_of(case, 1, seed=1), mirror_of(case, 1, seed=2)
    one, two = (diff_reference(case.planes, m, case.rows) for m in (first, second))
    assert not torch.equal(one, two)
    masks = launch.diff(case.planes, first, case.rows, interpret=True)
    again = launch.diff(case.planes, second, case.rows, masks, interpret=True)
    assert again is masks
    assert torch.equal(masks, one | two)


@pytest.mark.parametrize("absent", ["key", "value"])
def test_a_single_plane_is_compared_alone(absent: str) -> None:
    case = PlaneCase.draw().without(absent)
    mirror = mirror_of(case, 2)
    wanted = diff_reference(case.planes, mirror, case.rows, 1e-5)
    assert wanted.any()
    assert torch.equal(launch.diff(case.planes, mirror, case.rows, tolerance=1e-5, interpret=True), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_differs_is_packed_in_order_bit_for_bit(dtype: torch.dtype) -> None:
    case = still(PlaneCase.draw(dtype=dtype, n=40))
    mirror = mirror_of(case, 4)
    at = present_rows(launch.diff(case.planes, mirror, case.rows, interpret=True), 40)
    assert len(at) > 1
    page, row = case.rows.target_page[at], case.rows.target_row[at]
    got, wanted = launch.pack(mirror, page, row, interpret=True), pack_reference(mirror, page, row)
    for a, b in zip(got.each(), wanted.each(), strict=True):
        assert torch.equal(bits(a), bits(b))
        assert a.transpose(1, 2).is_contiguous()


def test_nothing_to_compare_or_to_pack_is_no_launch() -> None:
    case = PlaneCase.draw(n=0)
    assert launch.diff(case.planes, case.planes, case.rows, interpret=True).shape == (0,)
    none = torch.empty(0, dtype=torch.int64)
    assert launch.pack(case.planes, none, none, interpret=True).key.shape == (1, 2, 0, 64)


def test_masks_of_another_size_and_negative_tolerances_are_refused() -> None:
    case, masks = PlaneCase.draw(n=20), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(
        KernelArgumentError, match=r"masks: torch.int32 \(3,\); allowed: contiguous int32 \[2\]"
    ):
        launch.diff(case.planes, case.planes, case.rows, masks, interpret=True)
    with pytest.raises(KernelArgumentError, match=r"tolerance: -1\.0; allowed: 0 or more"):
        launch.diff(case.planes, case.planes, case.rows, tolerance=-1.0, interpret=True)
