"""Random pages in several layouts with rows to move between them, for kernels that go through strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from tokendance_engine.kernels.planes import Overlay, Planes, RowMap


def _cuda(flat: torch.Tensor, shape: tuple[int, int, int]) -> Planes:
    """vLLM's CUDA pages: logically [pages, heads, size, 2 * dim], in memory tokens before heads."""
    heads, size, dim = shape
    cache = flat.view(-1, size, heads, 2 * dim).transpose(1, 2)
    return Planes(cache[..., :dim], cache[..., dim:])


def _heads_first(flat: torch.Tensor, shape: tuple[int, int, int]) -> Planes:
    heads, size, dim = shape
    cache = flat.view(-1, heads, size, 2 * dim)
    return Planes(cache[..., :dim], cache[..., dim:])


def _vector(flat: torch.Tensor, shape: tuple[int, int, int]) -> Planes:
    """The CPU build's float32 pages: keys [dim, token], then values [token, dim]."""
    heads, size, dim = shape
    key, value = flat.view(-1, heads, 2, size * dim).unbind(2)
    return Planes(key.unflatten(2, (dim, size)).transpose(2, 3), value.unflatten(2, (size, dim)))


LAYOUTS = {"cuda": _cuda, "heads-first": _heads_first, "vector": _vector}


@dataclass(frozen=True)
class PlaneCase:
    """Pages 0 to 2 are sources, pages 3 to 6 targets; every target is named once."""

    planes: Planes
    rows: RowMap
    seed: int

    @classmethod
    def draw(
        cls,
        layout: str = "cuda",
        dtype: torch.dtype = torch.float32,
        *,
        n: int = 21,
        heads: int = 2,
        size: int = 16,
        dim: int = 64,
        rot: int | None = None,
        neox: bool = True,
        seed: int = 0,
    ) -> PlaneCase:
        generator = torch.Generator().manual_seed(seed)
        flat = torch.randn(7, heads * size * 2 * dim, generator=generator).to(dtype)
        source = torch.randint(3 * size, (n,), generator=generator)
        target = torch.randperm(4 * size, generator=generator)[:n] + 3 * size
        angle = torch.rand(n, (dim if rot is None else rot) // 2, generator=generator) * 2 * math.pi
        rows = RowMap(
            source // size, source % size, target // size, target % size, angle.cos(), angle.sin(), neox
        )
        return cls(LAYOUTS[layout](flat, (heads, size, dim)), rows, seed)

    def copy(self) -> Planes:
        """The same planes, strides included, in memory of their own."""
        key, value = self.planes.key, self.planes.value
        assert key is not None
        assert value is not None
        base = key._base
        assert base is not None
        assert base is value._base
        fresh = base.clone()
        return Planes(
            *(fresh.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (key, value)),
        )

    def overlay(self, rotate: bool = False, every: int = 3) -> Overlay:
        """Packed rows for every third row of the map, with values that no arithmetic leaves alone."""
        key, value = self.planes.key, self.planes.value
        assert key is not None
        assert value is not None
        n = len(self.rows)
        index = torch.full((n,), -1, dtype=torch.int32)
        chosen = torch.arange(0, n, every)
        order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(self.seed + 1))
        index[chosen] = order.int()
        generator = torch.Generator().manual_seed(self.seed + 2)
        packed = [
            torch.randn(len(chosen), t.shape[1], t.shape[3], generator=generator).to(t.dtype)
            for t in (key, value)
        ]
        if not rotate:
            for rows in packed:
                rows[..., 0] = math.inf
                rows[..., 1] = -0.0
        return Overlay(index, *packed, rotate)

    def without(self, plane: str) -> PlaneCase:
        """Only the other plane; without keys nothing is rotated."""
        if plane == "key":
            index = self.rows.source_page, self.rows.source_row, self.rows.target_page, self.rows.target_row
            return replace(self, planes=replace(self.planes, key=None), rows=RowMap.unrotated(*index))
        return replace(self, planes=replace(self.planes, value=None))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """What the elements are in memory, so that -0.0, infinities and NaNs are compared too."""
    return tensor.contiguous().view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def assert_planes(got: Planes, wanted: Planes, rot: int) -> None:
    """Values, and key dimensions that are not rotated, bit for bit; the others up to one rounding.

    Triton's interpreter truncates to bf16, which is one rounding away from the nearest.
    """
    assert (got.key is None, got.value is None) == (wanted.key is None, wanted.value is None)
    if got.value is not None and wanted.value is not None:
        assert torch.equal(bits(got.value), bits(wanted.value))
    if got.key is not None and wanted.key is not None:
        a, b = got.key.float(), wanted.key.float()
        assert torch.equal(bits(got.key[..., rot:]), bits(wanted.key[..., rot:]))
        near = torch.isclose(a, b, rtol=torch.finfo(got.key.dtype).eps, atol=1e-6)
        assert near.all(), float((a - b).abs().max())
