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
        pages = cpu.as_array(out)
        assert pages is not None
        size = self.cache.shape[2]
        key, value = (cpu.Separable.of(at.flatten(), size) for at in (self.key_at, self.value_at))
        assert key is not None
        assert value is not None
        cpu.restore(pages, self.rows(), key, value, neox)
        return out


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


@pytest.mark.parametrize("n", [0, 1, cpu.CHUNK - 1, cpu.CHUNK, cpu.CHUNK + 1])
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
    assert cpu.Separable.of(key_at.flatten(), 16) is not None
    swizzled = key_at.clone()
    swizzled[3] = swizzled[3].flip(0)
    assert cpu.Separable.of(swizzled.flatten(), 16) is None


def test_pages_that_are_not_contiguous_inside_are_not_taken() -> None:
    assert cpu.as_array(torch.zeros(4, 16, 2, 32).transpose(1, 2)) is None


def test_pages_with_gaps_between_them_are_written_in_place() -> None:
    whole = torch.zeros(8, 2, 16, 32)
    view = cpu.as_array(whole[::2])
    assert view is not None
    view[1] = 5.0
    assert (whole[2] == 5).all()
    assert whole.sum() == whole[2].sum()


def test_only_dtypes_with_a_kernel_are_supported() -> None:
    assert cpu.supported(torch.float32)
    assert cpu.supported(torch.bfloat16)
    assert not cpu.supported(torch.float16)


def test_rows_of_different_lengths_and_too_wide_rotations_are_refused() -> None:
    case = Case.draw("rows", torch.float32, 64, 64)
    pages, key = cpu.as_array(case.cache), cpu.Separable.of(case.key_at.flatten(), 32)
    assert pages is not None
    assert key is not None
    short = dataclasses.replace(case.rows(), target_row=case.rows().target_row[:-1])
    with pytest.raises(ValueError, match="must have 90"):
        cpu.restore(pages, short, key, key)
    wide = np.zeros((90, 33), dtype=np.float32)
    with pytest.raises(ValueError, match="66 rotated dimensions; a key has 64"):
        cpu.restore(pages, dataclasses.replace(case.rows(), cos=wide, sin=wide), key, key)
