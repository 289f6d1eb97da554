"""The Triton rotation between frames, interpreted, does what `rope.rotate` does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_cases import bits

pytest.importorskip("triton")

from tokendance_engine.kernels import launch
from tokendance_engine.kernels.planes import KernelArgumentError
from tokendance_engine.kernels.rope import RopeTable, rotate


def table(rot: int, neox: bool = True, scale: float = 1.0) -> RopeTable:
    angles = torch.arange(256).float()[:, None] * 1e4 ** (-torch.arange(0, rot, 2).float() / rot)
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1) * scale, neox)


def draw(n: int, heads: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, old and new positions; shifts go either way, and some keys stay."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(n, heads, dim, generator=generator)
    old, new = torch.randint(256, (2, n), generator=generator)
    new[::5] = old[::5]
    return keys, old, new


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("neox", [True, False])
def test_it_equals_the_torch_rotation(dtype: torch.dtype, neox: bool) -> None:
    rope = table(64, neox)
    keys, old, new = draw(21, 2, 64)
    wanted = rotate(keys.to(dtype), *rope.difference(old, new), neox)
    got = launch.rotate(keys.to(dtype), rope, old, new, interpret=True)
    assert got.dtype == dtype
    assert torch.allclose(got.float(), wanted.float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


@given(
    n=st.integers(0, 40),
    heads=st.integers(1, 3),
    half=st.integers(1, 20),
    rest=st.integers(0, 9),
    neox=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=12)
def test_odd_sizes_are_rotated_too(n: int, heads: int, half: int, rest: int, neox: bool, seed: int) -> None:
    rope = table(2 * half, neox)
    keys, old, new = draw(n, heads, 2 * half + rest, seed)
    got = launch.rotate(keys, rope, old, new, interpret=True)
    assert torch.allclose(got, rotate(keys, *rope.difference(old, new), neox), atol=1e-6)
    assert torch.equal(bits(got[..., 2 * half :]), bits(keys[..., 2 * half :]))


def test_scaled_tables_do_not_scale_keys_again() -> None:
    keys, old, new = draw(9, 2, 64)
    plain, scaled = table(64), table(64, scale=1.37)
    got = launch.rotate(keys, scaled, old, new, interpret=True)
    assert torch.allclose(got, rotate(keys, *plain.difference(old, new)), atol=1e-5)
    assert torch.allclose(got.norm(dim=2), keys.norm(dim=2), rtol=1e-5)


def test_keys_with_strides_are_rotated_in_place() -> None:
    whole, old, new = draw(20, 3, 160)
    keys = whole[..., 10:74]
    wanted = rotate(keys, *table(64).difference(old, new))
    before = whole.clone()
    assert launch.rotate(keys, table(64), old, new, out=keys, interpret=True) is keys
    assert torch.allclose(keys, wanted, atol=1e-6)
    assert torch.equal(whole[..., :10], before[..., :10])
    assert torch.equal(whole[..., 74:], before[..., 74:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(3, 64)}, r"keys: torch.float32 \(3, 64\); allowed: floats"),
        ({"keys": torch.zeros(3, 2, 300)}, "dim <= 256"),
        ({"keys": torch.zeros(3, 2, 64, dtype=torch.float64)}, "keys: torch.float64"),
        ({"table": table(66)}, "66 rotated dimensions; allowed: 2 to 64"),
        ({"table": RopeTable(torch.zeros(4, 64, dtype=torch.float64))}, "contiguous float32"),
        (
            {"old": torch.zeros(2, dtype=torch.int64)},
            r"old: torch.int64 \(2,\).*allowed: contiguous int64 \[3\]",
        ),
        ({"new": torch.zeros(3, dtype=torch.int32)}, r"new: torch.int32"),
        ({"out": torch.zeros(3, 2, 32)}, "out: .*must be like keys"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, object], message: str) -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    given = {"keys": torch.zeros(3, 2, 64), "table": table(64), "old": zeros, "new": zeros, **change}
    with pytest.raises(KernelArgumentError, match=message):
        launch.rotate(**given, interpret=True)
