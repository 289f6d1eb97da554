"""The specifications over planes, checked against loops that nobody could misread."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from page_packings import PACKINGS
from plane_cases import PlaneCase, bits
from tokendance_engine.kernels.blocks import changed_rows
from tokendance_engine.kernels.planes import Planes, RowMap
from tokendance_engine.kernels.reference import (
    deviation_reference,
    diff_reference,
    pack_reference,
    restore_planes,
    restore_reference,
    rotate_reference,
)
from tokendance_engine.kernels.rope import rotate


def test_restoring_planes_is_restoring_packed_pages() -> None:
    case = PlaneCase.draw("heads-first", n=30, dim=32, rot=16, neox=False)
    key_at, value_at = PACKINGS["rows"](16, 32)
    pages = torch.cat([case.planes.key, case.planes.value], dim=3).flatten(2)
    r = case.rows
    index = (r.source_page, r.source_row, r.target_page, r.target_row)
    wanted = restore_reference(pages, *index, r.cos, r.sin, key_at, value_at, neox=False)
    got = restore_planes(case.planes, case.planes, r)
    assert torch.equal(torch.cat([got.key, got.value], dim=3).flatten(2), wanted)


@pytest.mark.parametrize("neox", [True, False])
def test_rotation_is_that_of_complex_numbers(neox: bool) -> None:
    keys = torch.randn(5, 2, 12, generator=torch.Generator().manual_seed(0))
    angle = torch.linspace(-3, 3, 20).view(5, 4)
    got = rotate_reference(keys, angle.cos(), angle.sin(), neox)
    assert torch.equal(got[..., 8:], keys[..., 8:])
    assert torch.allclose(got, rotate(keys, angle.cos()[:, None], angle.sin()[:, None], neox), atol=1e-6)
    for i in range(4):
        a, b = (i, i + 4) if neox else (2 * i, 2 * i + 1)
        turned = torch.complex(keys[..., a], keys[..., b]) * torch.polar(torch.ones(5), angle[:, i])[:, None]
        assert torch.allclose(got[..., a], turned.real, atol=1e-6)
        assert torch.allclose(got[..., b], turned.imag, atol=1e-6)


def test_an_overlay_replaces_exactly_its_rows() -> None:
    case = PlaneCase.draw()
    plain = restore_planes(case.planes, case.planes, case.rows)
    for rotated in (False, True):
        overlay = case.overlay(rotated)
        got = restore_planes(case.planes, case.planes, case.rows, overlay)
        assert overlay.key is not None
        assert overlay.value is not None
        for i in range(len(case.rows)):
            page, row = case.rows.target_page[i], case.rows.target_row[i]
            at = int(overlay.index[i])
            if at < 0:
                assert torch.equal(got.key[page, :, row], plain.key[page, :, row])
                assert torch.equal(got.value[page, :, row], plain.value[page, :, row])
                continue
            packed = overlay.key[at : at + 1]
            wanted = rotate_reference(packed, case.rows.cos[i : i + 1], case.rows.sin[i : i + 1])
            wanted = wanted if rotated else packed
            assert torch.equal(bits(got.key[page, :, row]), bits(wanted[0]))
            assert torch.equal(bits(got.value[page, :, row]), bits(overlay.value[at]))


def test_a_restored_mirror_does_not_differ_and_every_single_change_is_found() -> None:
    case = PlaneCase.draw(n=20, dim=16, rot=8)
    mirror = restore_planes(case.planes, case.planes, case.rows)
    assert not diff_reference(case.planes, mirror, case.rows).any()
    for i in range(20):
        for plane in mirror.each():
            for d in (0, 7, 8, 15):
                at = int(case.rows.target_page[i]), i % 2, int(case.rows.target_row[i]), d
                before = plane[at].clone()
                plane[at] = torch.nextafter(before, torch.tensor(math.inf))
                masks = diff_reference(case.planes, mirror, case.rows)
                assert changed_rows(masks, 20).nonzero().tolist() == [[i]]
                plane[at] = before


@pytest.mark.parametrize(
    ("master", "mirror", "differs"),
    [(0.0, -0.0, True), (math.nan, math.nan, False), (math.nan, 1.0, True), (math.inf, math.inf, False)],
)
def test_what_differs_is_bits_not_values(master: float, mirror: float, differs: bool) -> None:
    rows = RowMap.unrotated(*(torch.zeros(1, dtype=torch.int64) for _ in range(4)))
    for planes in ((0, None), (None, 0)):
        a, b = (
            Planes(*(None if p is None else torch.full((1, 1, 1, 2), x) for p in planes))
            for x in (master, mirror)
        )
        assert bool(diff_reference(a, b, rows).any()) == differs


def test_a_tolerance_forgives_rotated_keys_and_nothing_else() -> None:
    case = PlaneCase.draw(n=4, dim=16, rot=8)
    mirror = restore_planes(case.planes, case.planes, case.rows)
    page, row = case.rows.target_page, case.rows.target_row
    mirror.key[page[0], 1, row[0], 3] += 0.01
    mirror.key[page[1], 1, row[1], 3] += 0.03
    mirror.key[page[2], 1, row[2], 12] += 0.01
    mirror.value[page[3], 1, row[3], 3] += 0.01
    assert int(diff_reference(case.planes, mirror, case.rows)) == 0b1111
    assert int(diff_reference(case.planes, mirror, case.rows, 0.02)) == 0b1110


def test_a_nan_is_near_nothing() -> None:
    case = PlaneCase.draw(n=2, dim=16)
    mirror = restore_planes(case.planes, case.planes, case.rows)
    mirror.key[case.rows.target_page[1], 0, case.rows.target_row[1], 3] = math.nan
    assert int(diff_reference(case.planes, mirror, case.rows, tolerance=100.0)) == 0b10


def test_deviation_is_the_squared_distance_of_keys_at_the_same_place() -> None:
    case = PlaneCase.draw(n=6, dim=16, rot=8)
    mirror = restore_planes(case.planes, case.planes, case.rows)
    assert torch.allclose(deviation_reference(case.planes, mirror, case.rows), torch.zeros(6))
    mirror.key[case.rows.target_page[2], 0, case.rows.target_row[2], 3] += 3.0
    mirror.key[case.rows.target_page[2], 1, case.rows.target_row[2], 14] -= 4.0
    mirror.value[case.rows.target_page[4], 1, case.rows.target_row[4], 14] -= 4.0
    wanted = torch.tensor([0, 0, 25.0, 0, 0, 0])
    assert torch.allclose(deviation_reference(case.planes, mirror, case.rows), wanted, atol=1e-4)
    with pytest.raises(ValueError, match="planes without keys"):
        deviation_reference(replace(case.planes, key=None), replace(mirror, key=None), case.rows)


def test_packing_keeps_order_and_bits() -> None:
    case = PlaneCase.draw("vector")
    page, row = torch.tensor([3, 0, 3]), torch.tensor([2, 5, 2])
    packed = pack_reference(case.planes, page, row)
    for got, plane in zip(packed.each(), case.planes.each(), strict=True):
        for i in range(3):
            assert torch.equal(got[0, :, i], plane[page[i], :, row[i]])
