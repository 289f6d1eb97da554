"""The fused CPU restore does what the plain torch specification says, whatever the packing."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from page_packings import PACKINGS

pytest.importorskip("numba")

from tokendance_engine.kernels import cpu
from tokendance_engine.kernels.cpu_moves import LONGEST, Runs, Turns, move
from tokendance_engine.kernels.cpu_planes import PackedPlane, Separable, supported
from tokendance_engine.kernels.reference import restore_reference


@dataclass(frozen=True)
class Case:
    """Pages and a random set of rows to restore; targets are distinct and no target is a source."""

    cache: torch.Tensor  # [pages, heads, size, 2 * dim]
    key_at: torch.Tensor
    value_at: torch.Tensor
    index: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def draw(
        cls,
        packing: str,
        dtype: torch.dtype,
        dim: int,
        rot: int,
        n: int = 90,
        heads: int = 2,
        size: int = 32,
        seed: int = 0,
    ) -> Case:
        """Two members' tables overlap the master's: the same source rows are read many times."""
        generator = torch.Generator().manual_seed(seed)
        cache = torch.randn(8, heads, size, 2 * dim, generator=generator).to(dtype)
        source = torch.randint(2 * size, (n,), generator=generator)
        target = torch.randperm(6 * size, generator=generator)[:n] + 2 * size
        angles = torch.rand(n, rot // 2, generator=generator) * 2 * math.pi
        index = (source // size, source % size, target // size, target % size)
        return cls(cache, *PACKINGS[packing](size, dim), index, angles.cos(), angles.sin())

    def expected(self, neox: bool = True) -> torch.Tensor:
        pages = self.cache.flatten(2)
        planes = (self.key_at, self.value_at)
        return restore_reference(pages, *self.index, self.cos, self.sin, *planes, neox).view_as(self.cache)

    def rows(self) -> cpu.Rows:
        source_page, source_row, target_page, target_row = (i.numpy() for i in self.index)
        return cpu.Rows(source_page, source_row, target_page, target_row, self.cos.numpy(), self.sin.numpy())

    def run(self, neox: bool = True) -> torch.Tensor:
        out = self.cache.clone()
        pages, rows = self.planes(out), self.rows()
        runs = rows.runs()
        cpu.restore(pages, pages, runs, Turns(runs, rows.cos, rows.sin, neox))
        return out

    def planes(self, cache: torch.Tensor) -> cpu.Planes:
        size = self.cache.shape[2]
        planes = []
        for at in (self.key_at, self.value_at):
            where = Separable.of(at.flatten(), size)
            assert where is not None
            plane = PackedPlane.of_pages(cache, where)
            assert plane is not None
            planes.append(plane)
        return cpu.Planes(*planes)


def assert_same(case: Case, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """V and untouched elements bit for bit; keys up to one rounding (multiply and add may be fused or not)."""
    is_key = torch.zeros(case.cache.shape[2] * case.cache.shape[3], dtype=torch.bool)
    is_key[case.key_at.flatten()] = True
    a, b = got.flatten(2), wanted.flatten(2)
    assert torch.equal(a[..., ~is_key], b[..., ~is_key])
    x, y = a[..., is_key].float(), b[..., is_key].float()
    eps = torch.finfo(case.cache.dtype).eps
    assert torch.allclose(x, y, rtol=eps, atol=1e-6), float((x - y).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    ("dim", "rot"),
    [(64, 64), (80, 80), (96, 96), (128, 128), (80, 32), (64, 0)],
)
def test_it_equals_the_specification_in_both_pairings(
    packing: str, dtype: torch.dtype, dim: int, rot: int
) -> None:
    case = Case.draw(packing, dtype, dim, rot, seed=dim + rot)
    neox, gptj = case.expected(True), case.expected(False)
    assert torch.equal(neox, gptj) == (rot == 0)
    assert_same(case, case.run(True), neox)
    assert_same(case, case.run(False), gptj)


@pytest.mark.parametrize("n", [0, 1, LONGEST - 1, LONGEST, LONGEST + 1])
def test_any_number_of_rows_is_restored(n: int) -> None:
    case = Case.draw("tiles", torch.float32, 64, 64, n=n)
    got = case.run()
    assert_same(case, got, case.expected())
    changed = (got != case.cache).any(dim=3).sum() if n else 0
    assert (changed == 0) == (n == 0)


@pytest.mark.parametrize(("heads", "size"), [(1, 16), (8, 128), (3, 256)])
def test_any_page_size_and_number_of_heads_is_restored(heads: int, size: int) -> None:
    case = Case.draw("transposed", torch.bfloat16, 64, 64, heads=heads, size=size)
    assert_same(case, case.run(), case.expected())


def test_bf16_is_rounded_exactly_as_torch_rounds_it() -> None:
    """With sin = 0 the result is one product, so no fusing blurs the comparison: all bits must agree."""
    case = Case.draw("rows", torch.bfloat16, 64, 64, n=190)
    halves = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 - 2**-9, 0.5 + 2**-9, -1.0 - 2**-8, 2.0**-130])
    cos = halves[torch.randint(len(halves), case.cos.shape, generator=torch.Generator().manual_seed(5))]
    plain = Case(case.cache, case.key_at, case.value_at, case.index, cos, torch.zeros_like(cos))
    wanted = plain.expected()
    assert torch.equal(plain.run().view(torch.int16), wanted.view(torch.int16))
    ties = (case.cache.float() * (1 + 2**-8)).view(torch.int32) & 0xFFFF == 0x8000
    assert ties.any(), "no value lies half-way, so ties to even were not exercised"


def test_infinities_and_nans_stay_what_they_are() -> None:
    case = Case.draw("rows", torch.bfloat16, 64, 64)
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    case.cache[:2, :, :, ::7] = odd.repeat(100)[: case.cache[:2, :, :, ::7].shape[3]].to(torch.bfloat16)
    got, wanted = case.run(), case.expected()
    assert wanted.isnan().any()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.isposinf(), wanted.isposinf())


def test_a_full_turn_of_zero_angle_copies_keys_bit_for_bit() -> None:
    case = Case.draw("tiles", torch.bfloat16, 64, 64)
    still = Case(
        case.cache,
        case.key_at,
        case.value_at,
        case.index,
        torch.ones_like(case.cos),
        torch.zeros_like(case.sin),
    )
    assert torch.equal(still.run().view(torch.int16), still.expected().view(torch.int16))


def test_a_packing_that_is_no_sum_of_token_and_dim_is_not_taken() -> None:
    key_at, _ = PACKINGS["rows"](16, 16)
    assert Separable.of(key_at.flatten(), 16) is not None
    swizzled = key_at.clone()
    swizzled[3] = swizzled[3].flip(0)
    assert Separable.of(swizzled.flatten(), 16) is None


WHERE = Separable(np.arange(16) * 32, np.arange(16))


def test_pages_that_are_not_contiguous_inside_are_not_taken() -> None:
    assert PackedPlane.of_pages(torch.zeros(4, 16, 2, 32).transpose(1, 2), WHERE) is None


def test_pages_with_gaps_between_them_are_written_in_place() -> None:
    whole = torch.zeros(8, 2, 16, 32)
    plane = PackedPlane.of_pages(whole[::2], WHERE)
    assert plane is not None
    source = PackedPlane.of_rows(torch.full((16, 2, 16), 5.0))
    page, row = np.ones(16, dtype=np.int64), np.arange(16)
    move(source, plane, Runs.of(0 * page, row, page, row))
    assert (whole[2, :, :, :16] == 5).all()
    assert whole.sum() == whole[2, :, :, :16].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("rot", [0, 16, 64])
def test_rows_in_order_are_rotated_into_pages_as_rows_in_pages_are(
    packing: str, dtype: torch.dtype, neox: bool, rot: int
) -> None:
    """The store's rows are dense; from there and from pages the same bits must come, or a mirror is not its member."""
    case = Case.draw(packing, dtype, 64, rot)
    order = torch.arange(90)  # long runs, which meet the ends of pages on both sides
    source, target = order % 64, order + 64 + 5
    index = (source // 32, source % 32, target // 32, target % 32)
    case = dataclasses.replace(case, index=index)
    wanted = case.run(neox)
    pages, got = case.planes(case.cache), case.cache.clone()
    dense = torch.empty(2, 64, 2, 64, dtype=dtype)
    out = case.planes(got)
    from_pages = np.arange(64)
    for plane, to in ((pages.key, dense[0]), (pages.value, dense[1])):
        move(
            plane,
            PackedPlane.of_rows(to),
            Runs.of(from_pages // 32, from_pages % 32, 0 * from_pages, from_pages),
        )
    rows = case.rows()
    runs = Runs.of(0 * rows.source_page, source.numpy(), rows.target_page, rows.target_row)
    held = cpu.Planes(*(PackedPlane.of_rows(x) for x in dense))
    cpu.restore(held, out, runs, Turns(runs, rows.cos, rows.sin, neox))
    assert torch.equal(got, wanted)
    assert_same(case, got, case.expected(neox))


def test_rows_that_follow_each_other_are_one_run_up_to_its_longest() -> None:
    row = np.concatenate([np.arange(3, 3 + LONGEST + 2), [9, 8]])
    page = np.zeros(len(row), dtype=np.int64)
    runs = Runs.of(page, row, page, np.arange(len(row)))
    assert runs.table[:, 4].tolist() == [LONGEST, 2, 1, 1]
    assert runs.table[:, 5].tolist() == [0, LONGEST, LONGEST + 2, LONGEST + 3]
    assert runs.table[:, 1].tolist() == [3, 3 + LONGEST, 9, 8]


def test_only_dtypes_with_a_kernel_are_supported() -> None:
    assert supported(torch.float32)
    assert supported(torch.bfloat16)
    assert not supported(torch.float16)


def test_rows_of_different_lengths_and_too_wide_rotations_are_refused() -> None:
    case = Case.draw("rows", torch.float32, 64, 64)
    pages, rows = case.planes(case.cache), case.rows()
    with pytest.raises(ValueError, match="must have 90"):
        dataclasses.replace(rows, target_row=rows.target_row[:-1]).runs()
    runs = rows.runs()
    with pytest.raises(ValueError, match="must have 90 rows"):
        Turns(runs, rows.cos[:-1], rows.sin)
    wide = np.zeros((90, 33), dtype=np.float32)
    with pytest.raises(ValueError, match="66 rotated dimensions; a key has 64"):
        cpu.restore(pages, pages, runs, Turns(runs, wide, wide))
    with pytest.raises(ValueError, match="of other rows"):
        cpu.restore(pages, pages, rows.runs(), Turns(runs, rows.cos, rows.sin))


def test_planes_that_do_not_fit_each_other_and_keys_of_half_precision_are_refused() -> None:
    case = Case.draw("rows", torch.float32, 64, 64)
    pages, rows = case.planes(case.cache), case.rows()
    with pytest.raises(ValueError, match=r"2 heads of 64, into torch\.float32, 3 heads of 64"):
        move(pages.key, PackedPlane.of_rows(torch.zeros(90, 3, 64)), rows.runs())
    half = PackedPlane.of_rows(torch.zeros(4, 2, 64, dtype=torch.float16))
    at = np.arange(2)
    runs = Runs.of(0 * at, at, 0 * at, at + 2)
    move(half, half, runs)
    with pytest.raises(ValueError, match=r"float16; allowed: float32, bfloat16"):
        move(half, half, runs, Turns(runs, np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)))
