"""The CPU diff and deviation do what the torch specification says, whatever the packing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from page_packings import PACKINGS

pytest.importorskip("numba")

from tokendance_engine.kernels import cpu, cpu_diff
from tokendance_engine.kernels.blocks import changed_rows
from tokendance_engine.kernels.cpu_moves import Turns
from tokendance_engine.kernels.cpu_planes import PackedPlane, Separable
from tokendance_engine.kernels.planes import Planes, RowMap
from tokendance_engine.kernels.reference import deviation_reference, diff_reference


@dataclass(frozen=True)
class Packed:
    """Pages 0 and 1 hold the master, 2 to 7 the mirror; `planes` are copies of both in plain order."""

    cache: torch.Tensor
    key_at: torch.Tensor
    value_at: torch.Tensor
    rows: RowMap

    @classmethod
    def draw(
        cls,
        packing: str,
        dtype: torch.dtype,
        dim: int = 64,
        rot: int = 64,
        n: int = 75,
        neox: bool = True,
        seed: int = 0,
    ) -> Packed:
        """A mirror that was restored from its master by the CPU restore."""
        generator = torch.Generator().manual_seed(seed)
        cache = torch.randn(8, 2, 32, 2 * dim, generator=generator).to(dtype)
        source = torch.randint(64, (n,), generator=generator)
        target = torch.randperm(6 * 32, generator=generator)[:n] + 64
        angle = torch.rand(n, rot // 2, generator=generator) * 2 * math.pi
        rows = RowMap(source // 32, source % 32, target // 32, target % 32, angle.cos(), angle.sin(), neox)
        made = cls(cache, *PACKINGS[packing](32, dim), rows)
        planes = [PackedPlane.of_pages(cache, at) for at in made.separable()]
        assert planes[0] is not None
        assert planes[1] is not None
        pages, moved = cpu.Planes(planes[0], planes[1]), made.cpu_rows()
        runs = moved.runs()
        cpu.restore(pages, pages, runs, Turns(runs, moved.cos, moved.sin, neox))
        return made

    def separable(self) -> tuple[Separable, Separable]:
        key, value = (Separable.of(at.flatten(), 32) for at in (self.key_at, self.value_at))
        assert key is not None
        assert value is not None
        return key, value

    def cpu_rows(self) -> cpu.Rows:
        r = self.rows
        index = (t.numpy() for t in (r.source_page, r.source_row, r.target_page, r.target_row))
        return cpu.Rows(*index, r.cos.numpy(), r.sin.numpy())

    def packed(self) -> cpu_diff.PackedPlanes:
        key, value = (PackedPlane.of_pages(self.cache, at) for at in self.separable())
        return cpu_diff.PackedPlanes(key, value)

    def planes(self) -> Planes:
        inside = self.cache.flatten(2)
        return Planes(*(inside[:, :, at] for at in (self.key_at, self.value_at)))

    def change(self, plane: str, row: int, head: int, dim: int, by: float = 1.0) -> None:
        """Change one element of one target row."""
        at = (self.key_at if plane == "key" else self.value_at)[self.rows.target_row[row], dim]
        self.cache.flatten(2)[self.rows.target_page[row], head, at] += by

    def diff(self, tolerance: float = 0.0) -> torch.Tensor:
        planes = self.packed()
        return torch.from_numpy(
            cpu_diff.diff(planes, planes, self.cpu_rows(), neox=self.rows.neox, tolerance=tolerance)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("dim", "rot", "neox"), [(64, 64, True), (80, 32, False), (128, 128, True)])
def test_a_restored_mirror_equals_its_master_and_changes_are_found(
    packing: str, dtype: torch.dtype, dim: int, rot: int, neox: bool
) -> None:
    made = Packed.draw(packing, dtype, dim, rot, neox=neox)
    assert not made.diff().any()
    made.change("key", 3, 1, 0)
    made.change("key", 40, 0, dim - 1)
    made.change("value", 74, 1, dim // 2)
    made.change("value", 16, 0, 1)
    assert changed_rows(made.diff(), 75).nonzero().flatten().tolist() == [3, 16, 40, 74]


@given(
    packing=st.sampled_from(sorted(PACKINGS)),
    n=st.integers(0, 80),
    half=st.integers(0, 16),
    neox=st.booleans(),
    bf16=st.booleans(),
    changes=st.lists(
        st.tuples(st.sampled_from(["key", "value"]), st.integers(0, 79), st.integers(0, 1), st.integers(0, 31)),
        max_size=5,
    ),
    tolerance=st.sampled_from([0.0, 0.25, 4.0]),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_it_equals_the_specification(
    packing: str, n: int, half: int, neox: bool, bf16: bool, changes: list[tuple[str, int, int, int]],
    tolerance: float, seed: int,
) -> None:  # fmt: skip
    dtype = torch.bfloat16 if bf16 else torch.float32
    made = Packed.draw(packing, dtype, 32, 2 * half, n, neox, seed)
    for plane, row, head, dim in changes:
        if row < n:
            made.change(plane, row, head, dim)
    planes = made.planes()
    wanted = diff_reference(planes, planes, made.rows, tolerance)
    assert torch.equal(made.diff(tolerance), wanted)
    deviations = cpu_diff.deviation(
        *(p.key for p in (made.packed(), made.packed())), made.cpu_rows(), neox=neox
    )
    wanted = deviation_reference(planes, planes, made.rows)
    assert torch.allclose(torch.from_numpy(deviations), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_compared_where_values_would_deceive(odd: float, dtype: torch.dtype) -> None:
    made = Packed.draw("rows", dtype, rot=0, n=20)
    page, row = made.rows.target_page[7], made.rows.target_row[7]
    inside = made.cache.flatten(2)
    for plane_at in (made.key_at, made.value_at):
        source = made.rows.source_page[7], 0, plane_at[made.rows.source_row[7], 5]
        same = (made.rows.source_page == source[0]) & (made.rows.source_row == made.rows.source_row[7])
        inside[source] = odd
        inside[made.rows.target_page[same], 0, plane_at[made.rows.target_row[same], 5]] = odd
        assert not made.diff().any()
        inside[page, 0, plane_at[row, 5]] = 0.0 if odd == 0 else 1.0
        assert changed_rows(made.diff(), 20).nonzero().flatten().tolist() == [7]
        inside[page, 0, plane_at[row, 5]] = odd


def test_layers_add_to_one_index_and_planes_may_be_absent() -> None:
    one, two = (Packed.draw("tiles", torch.float32, seed=s) for s in (0, 0))
    one.change("key", 5, 0, 3)
    two.change("value", 60, 1, 3)
    masks = cpu_diff.diff(one.packed(), one.packed(), one.cpu_rows())
    keys_only = replace(two.packed(), value=None)
    assert cpu_diff.diff(keys_only, keys_only, two.cpu_rows(), masks) is masks
    assert changed_rows(torch.from_numpy(masks), 75).nonzero().flatten().tolist() == [5]
    cpu_diff.diff(two.packed(), two.packed(), two.cpu_rows(), masks)
    assert changed_rows(torch.from_numpy(masks), 75).nonzero().flatten().tolist() == [5, 60]


def test_what_does_not_fit_is_refused_by_name() -> None:
    made, other = Packed.draw("rows", torch.float32), Packed.draw("rows", torch.bfloat16)
    planes, rows = made.packed(), made.cpu_rows()
    half = PackedPlane.of_rows(torch.zeros(5, 2, 64, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"key: torch\.float32 and torch\.bfloat16; allowed"):
        cpu_diff.diff(planes, other.packed(), rows)
    with pytest.raises(ValueError, match=r"float16; allowed: both float32 or both bfloat16"):
        cpu_diff.deviation(half, half, rows)
    with pytest.raises(ValueError, match="value: on one side only"):
        cpu_diff.diff(replace(planes, value=None), planes, rows)
    with pytest.raises(ValueError, match="2 heads of 64 and 3 of 64"):
        cpu_diff.deviation(planes.key, PackedPlane.of_rows(torch.zeros(75, 3, 64)), rows)
    with pytest.raises(ValueError, match="rows of different lengths; all must have 75"):
        cpu_diff.diff(planes, planes, replace(rows, target_row=rows.target_row[1:]))
    with pytest.raises(ValueError, match=r"masks: int32 \(9,\); allowed: int32 \[5\]"):
        cpu_diff.diff(planes, planes, rows, np.zeros(9, dtype=np.int32))
    with pytest.raises(ValueError, match=r"tolerance: nan; allowed: 0 or more"):
        cpu_diff.diff(planes, planes, rows, tolerance=math.nan)
    wide = np.zeros((75, 33), dtype=np.float32)
    with pytest.raises(ValueError, match="66 rotated dimensions; a key has 64"):
        cpu_diff.diff(planes, planes, replace(rows, cos=wide, sin=wide))
