"""The restore for GPUs: one Triton launch per layer over all members, both planes, verified at start.

The kernel goes through strides, so pages may have any layout whose elements lie at offset + token * a + dim * b
(vLLM's CUDA pages do, and so do the CPU build's float32 pages, where the kernel runs in Triton's interpreter for
tests). Whenever the kernel cannot be used, the dense path of `PagedKV` does the work, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.pages import (
    Layer,
    PackingError,
    PagedKV,
    Restore,
    rotation,
    scratch_like,
    write_rows,
)
from tokendance_engine.kernels.planes import Planes, RowMap
from tokendance_engine.kernels.rope import rotate
from tokendance_engine.reuse.ports import MemberJob

logger = init_logger("vllm.tokendance")

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest relative difference of a key from the backend's: one rounding (the interpreter truncates bf16)."""


class TritonPagedKV(PagedKV):
    """Pages restored by `kernels.launch.restore`.

    Args:
        interpret: run the kernel in Triton's interpreter; on CPU pages it must.

    Attributes:
        path: "triton", "triton-interpret", or "torch" once the kernel cannot be used.
        reason: why it cannot, or None.
        restores: how many `restore` calls each path has done.

    Raises:
        PackingError: as `PagedKV`; a kernel that does not fit is no error, but a fallback.
    """

    def __init__(self, layers: Sequence[Layer], *, interpret: bool = False) -> None:
        super().__init__(layers)
        self._interpret = interpret
        self.path = "triton-interpret" if interpret else "triton"
        self.reason: str | None = None
        self.restores = {self.path: 0, "torch": 0}
        try:
            self._planes = [self._planes_of(layer.cache) for layer in self.layers]
            for layer in {id(layer.rope): layer for layer in self.layers}.values():
                self._verify(layer)
        except Exception as error:
            self._fall_back(error)

    @torch.inference_mode()
    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """As `PagedKV.restore`, all members in one launch per layer."""
        if self.path != "torch":
            try:
                self._fused(jobs)
                self.restores[self.path] += 1
                return
            except Exception as error:
                # Sources are never written, so what the kernel left half done is done again in full.
                self._fall_back(error)
        super().restore(jobs)
        self.restores["torch"] += 1

    @torch.inference_mode()
    def remake(
        self, layer: int, keys: torch.Tensor, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """As `PagedKV.remake`, by the kernel that `restore` uses now."""
        rope = self.layers[layer].rope
        if self.path == "torch" or rope is None or np.array_equal(old, new):
            return super().remake(layer, keys, old, new)
        device = self.layers[layer].cache.device
        source = keys.to(device)
        made = torch.empty_like(source, memory_format=torch.contiguous_format)
        row, none = (
            torch.arange(len(keys), device=device),
            torch.zeros(len(keys), dtype=torch.int64, device=device),
        )
        cos, sin = (x[:, 0].contiguous() for x in rotation(rope, old, new, device))
        rows = RowMap(none, row, none, row, cos, sin, rope.neox)
        from tokendance_engine.kernels import launch

        launch.restore(Planes.dense(source, None), Planes.dense(made, None), rows, interpret=self._interpret)
        return made.to(keys.device)

    def _fall_back(self, error: Exception) -> None:
        self.path, self.reason = "torch", f"{type(error).__name__}: {error}"
        logger.warning("TokenDance: restoring without the Triton kernel (%s)", self.reason)

    def _fused(self, jobs: Sequence[MemberJob]) -> None:
        work = [Restore.of(job, self.page_size) for job in jobs]
        work = [w for w in work if len(w.rows)]
        if not work:
            return
        maps = {id(layer.rope): layer for layer in self.layers}
        rows = {rope: self._rows_of(work, layer) for rope, layer in maps.items()}
        for layer, planes in zip(self.layers, self._planes, strict=True):
            self._launch(planes, rows[id(layer.rope)])

    def _launch(self, planes: Planes, rows: RowMap) -> None:
        from tokendance_engine.kernels import launch

        launch.restore(planes, planes, rows, interpret=self._interpret)

    def _planes_of(self, cache: torch.Tensor) -> Planes:
        key, value = (
            affine_plane(cache, at, self.page_size) for at in (self.packing.key, self.packing.value)
        )
        return Planes(key, value)

    def _rows_of(self, work: Sequence[Restore], layer: Layer) -> RowMap:
        device, size = layer.cache.device, self.page_size
        pages = [torch.from_numpy(w.master_pages[w.rows // size]).long() for w in work]
        rows = [torch.from_numpy(w.rows % size) for w in work]
        slots = torch.cat([torch.from_numpy(w.slots) for w in work])
        index = (
            torch.cat(pages).to(device),
            torch.cat(rows).to(device),
            (slots // size).to(device),
            (slots % size).to(device),
        )
        if layer.rope is None:
            return RowMap.unrotated(*index)
        angles = [w.angles(layer.rope, device) for w in work]
        cos, sin = (torch.cat(part)[:, 0].contiguous() for part in zip(*angles, strict=True))
        return RowMap(*index, cos, sin, layer.rope.neox)

    def _verify(self, layer: Layer) -> None:
        """The kernel must leave what the backend's writer leaves, up to one rounding of a key."""
        size, heads, dim, device = self.page_size, self.heads, self.dim, layer.cache.device
        cache = scratch_like(layer.cache, pages=4).zero_()
        generator = torch.Generator().manual_seed(1)
        key, value = torch.randn(2, size, heads, dim, generator=generator).to(device, cache.dtype)
        old = torch.arange(size, device=device)
        new = old + 3
        write_rows(Layer(layer.module, cache, layer.rope), key, value, old + size)
        ours, theirs = Layer(layer.module, cache.clone(), layer.rope), Layer(layer.module, cache, layer.rope)

        target = new + 2 * size
        index = (old // size + 1, old % size, target // size, target % size)
        rows, moved = RowMap.unrotated(*index), key
        if layer.rope is not None:
            cos, sin = layer.rope.difference(old, new)
            moved = rotate(key, cos, sin, neox=layer.rope.neox)
            rows = RowMap(*index, cos[:, 0].contiguous(), sin[:, 0].contiguous(), layer.rope.neox)
        write_rows(theirs, moved.contiguous(), value, target)
        self._launch(self._planes_of(ours.cache), rows)

        a, b = (self.read(copy, torch.arange(4, device=device)) for copy in (ours, theirs))
        near = _TOLERANCE[cache.dtype]
        if not torch.equal(a[1], b[1]) or not torch.allclose(
            a[0].float(), b[0].float(), rtol=near, atol=near
        ):
            raise PackingError("the Triton kernel leaves other pages than the attention backend's own writer")


def affine_plane(cache: torch.Tensor, where: torch.Tensor, size: int) -> torch.Tensor:
    """One plane of packed pages as a strided view [pages, heads, size, dim].

    Args:
        cache: [pages, heads, size, width], any strides.
        where: int64 [size * dim], where element (token, dim) lies in the flattened interior of a page and head.

    Raises:
        PackingError: elements do not lie at offset + token * a + dim * b.
    """
    width = cache.shape[3]
    offset = ((where // width) * cache.stride(2) + (where % width) * cache.stride(3)).view(size, -1).cpu()
    first = int(offset[0, 0])
    a = int(offset[1, 0]) - first if size > 1 else 1
    b = int(offset[0, 1]) - first if offset.shape[1] > 1 else 1
    token, dim = torch.arange(size)[:, None], torch.arange(offset.shape[1])[None]
    if not torch.equal(offset, first + a * token + b * dim):
        raise PackingError("elements of a page do not lie at fixed strides")
    if a < 0 or b < 0:
        raise PackingError(f"strides of {a} and {b} inside a page; allowed: not negative")
    shape = (cache.shape[0], cache.shape[1], size, offset.shape[1])
    strides = (cache.stride(0), cache.stride(1), a, b)
    return cache.as_strided(shape, strides, cache.storage_offset() + first)
