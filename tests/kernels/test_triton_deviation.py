"""The Triton deviation, interpreted, does what the torch specification says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_cases import LAYOUTS, PlaneCase

pytest.importorskip("triton")

from tokendance_engine.kernels import launch
from tokendance_engine.kernels.planes import KernelArgumentError, Planes
from tokendance_engine.kernels.reference import deviation_reference


def fresh_of(case: PlaneCase, seed: int = 0) -> Planes:
    """Other keys in the target rows."""
    generator = torch.Generator().manual_seed(seed)
    assert case.planes.key is not None
    noise = torch.randn(case.planes.key.shape, generator=generator)
    return replace(case.planes, key=case.planes.key + noise.to(case.planes.key.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_equals_the_specification_in_every_layout(layout: str, dtype: torch.dtype) -> None:
    case = PlaneCase.draw(layout, dtype)
    fresh = fresh_of(case)
    wanted = deviation_reference(case.planes, fresh, case.rows)
    assert wanted.min() > 1
    assert torch.allclose(launch.deviation(case.planes, fresh, case.rows, interpret=True), wanted, rtol=1e-5)


@given(
    n=st.integers(0, 40),
    heads=st.integers(1, 3),
    half=st.integers(0, 12),
    rest=st.integers(1, 9),
    neox=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=8)
def test_odd_sizes_are_measured_too(n: int, heads: int, half: int, rest: int, neox: bool, seed: int) -> None:
    dim = 2 * half + rest
    case = PlaneCase.draw(n=n, heads=heads, dim=dim, rot=2 * half, neox=neox, seed=seed)
    fresh = fresh_of(case, seed)
    wanted = deviation_reference(case.planes, fresh, case.rows)
    got = launch.deviation(case.planes, fresh, case.rows, interpret=True)
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_reused_and_fresh_keys_may_differ_in_dtype() -> None:
    case = PlaneCase.draw(dtype=torch.float16)
    fresh = fresh_of(PlaneCase.draw(dtype=torch.float32))
    wanted = deviation_reference(case.planes, fresh, case.rows)
    assert torch.allclose(launch.deviation(case.planes, fresh, case.rows, interpret=True), wanted, rtol=1e-5)


def test_the_ranking_is_by_deviation() -> None:
    """Keys moved to their places deviate by nothing, those left behind by much."""
    case = PlaneCase.draw(n=20)
    planes = case.copy()
    part = replace(case.rows, **{name: getattr(case.rows, name)[:12] for name in (
        "source_page", "source_row", "target_page", "target_row", "cos", "sin")})  # fmt: skip
    launch.restore(planes, planes, part, interpret=True)
    got = launch.deviation(planes, planes, case.rows, interpret=True)
    assert got[:12].max() < 1e-6
    assert got[12:].min() > 1


def test_planes_without_keys_are_refused() -> None:
    case = PlaneCase.draw().without("key")
    with pytest.raises(KernelArgumentError, match="keys are what is compared"):
        launch.deviation(case.planes, case.planes, case.rows, interpret=True)
