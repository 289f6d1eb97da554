"""The fast restore for vLLM's CPU build: one fused pass per layer, verified against the backend's own writer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.adapters.vllm.pages import (
    Layer,
    PackingError,
    PagedKV,
    Restore,
    rotation,
    scratch_like,
    write_rows,
)
from tokendance_engine.kernels import cpu
from tokendance_engine.kernels.rope import rotate
from tokendance_engine.reuse.ports import MemberJob


class CpuPagedKV(PagedKV):
    """Pages restored by `kernels.cpu`.

    Raises:
        PackingError: this path does not fit the pages; use `PagedKV`.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(layers)
        key = cpu.Separable.of(self.packing.key, self.page_size)
        value = cpu.Separable.of(self.packing.value, self.page_size)
        arrays = [cpu.as_array(layer.cache) for layer in self.layers]
        if key is None or value is None or any(a is None for a in arrays):
            raise PackingError("the page packing is not separable")
        if not cpu.supported(self.layers[0].cache.dtype):
            raise PackingError(f"no raw stores for {self.layers[0].cache.dtype}")
        self._key, self._value = key, value
        self._arrays = [a for a in arrays if a is not None]
        with _all_cores():
            for layer in {id(x.rope): x for x in self.layers}.values():
                self._verify(layer)
            self._compile_remake()

    @torch.inference_mode()
    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """As `PagedKV.restore`, all members in one pass per layer."""
        work = [Restore.of(job, self.page_size) for job in jobs if len(job.moves)]
        if not work:
            return
        by_rope = {id(x.rope): self._rows_of(work, x) for x in {id(x.rope): x for x in self.layers}.values()}
        for layer, array in zip(self.layers, self._arrays, strict=True):
            neox = layer.rope.neox if layer.rope is not None else True
            cpu.restore(array, by_rope[id(layer.rope)], self._key, self._value, neox)

    @torch.inference_mode()
    def remake(
        self, layer: int, keys: torch.Tensor, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """As `PagedKV.remake`: the same compiled pass, over rows that lie one after the other."""
        rope = self.layers[layer].rope
        if rope is None or np.array_equal(old, new):
            return keys
        made = keys.clone(memory_format=torch.contiguous_format)
        array: npt.NDArray[np.generic] = (
            made.view(torch.uint16).numpy() if made.dtype == torch.bfloat16 else made.numpy()
        )
        row, none = np.arange(len(made)), np.zeros(len(made), dtype=np.int64)
        cos, sin = (x[:, 0].contiguous().numpy() for x in rotation(rope, old, new, torch.device("cpu")))
        plain = cpu.Separable(np.zeros(1, dtype=np.int64), np.arange(self.dim))
        empty = cpu.Separable(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
        cpu.restore(array, cpu.Rows(row, none, row, none, cos, sin), plain, empty, rope.neox)
        return made

    def _rows_of(self, work: Sequence[Restore], layer: Layer) -> cpu.Rows:
        rows = np.concatenate([w.rows for w in work])
        source = np.concatenate([w.master_pages[w.rows // self.page_size] for w in work]).astype(np.int64)
        slots = np.concatenate([w.slots for w in work])
        none = np.zeros((len(rows), 0), dtype=np.float32)
        cos = sin = none
        if layer.rope is not None:
            angles = [w.angles(layer.rope, torch.device("cpu")) for w in work]
            cos, sin = (torch.cat(part)[:, 0].contiguous().numpy() for part in zip(*angles, strict=True))
        return cpu.Rows(
            source, rows % self.page_size, slots // self.page_size, slots % self.page_size, cos, sin
        )

    def _compile_remake(self) -> None:
        """Dense rows are another array type to numba: compile for them here, not while a round waits."""
        one = torch.zeros(1, self.heads, self.dim, dtype=self.layers[0].cache.dtype)
        self.remake(0, one, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))

    def _verify(self, layer: Layer) -> None:
        """The fused pass must leave the very bytes that the backend's writer leaves, up to one rounding of a key."""
        size, heads, dim = self.page_size, self.heads, self.dim
        cache = scratch_like(layer.cache, pages=4)
        ours, theirs = Layer(layer.module, cache.clone(), layer.rope), Layer(layer.module, cache, layer.rope)
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(2, size, heads, dim, generator=generator).to(cache.dtype)
        for copy in (ours, theirs):
            copy.cache.zero_()
            write_rows(copy, rows[0].contiguous(), rows[1].contiguous(), torch.arange(size) + size)
        old = torch.arange(size)
        new = old + 3
        key = rows[0]
        if layer.rope is not None:
            key = rotate(key, *layer.rope.difference(old, new), neox=layer.rope.neox)
        write_rows(theirs, key.contiguous(), rows[1].contiguous(), new + 2 * size)
        job = MemberJob(
            "verify",
            0,
            np.array([1], dtype=np.int32),
            np.array([2, 3], dtype=np.int32),
            np.array([[0, 3, size, 0, 3]]),
            [],
        )
        array = cpu.as_array(ours.cache)
        if array is None:
            raise PackingError("scratch pages are not laid out like the engine's")
        index = self._rows_of([Restore.of(job, size)], layer)
        cpu.restore(array, index, self._key, self._value, layer.rope.neox if layer.rope else True)
        a, b = (self.read(copy, torch.arange(4)) for copy in (ours, theirs))
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3}[cache.dtype]
        if not torch.equal(a[1], b[1]) or not torch.allclose(a[0], b[0], rtol=tolerance, atol=tolerance):
            raise PackingError("raw stores differ from the attention backend's own writer")


class _all_cores:  # noqa: N801 - reads as a statement
    """Start numba's threads free to run on every core this process may use.

    vLLM pins its threads one to a core, and new threads inherit the pin of the thread that starts them; without
    this the whole pool would share one core. The caller's own pin is put back afterwards.
    """

    def __enter__(self) -> None:
        self._mine = os.sched_getaffinity(0)
        tasks = [int(t.name) for t in Path("/proc/self/task").iterdir()]
        allowed = set(self._mine)
        for task in tasks:
            try:
                allowed |= os.sched_getaffinity(task)
            except ProcessLookupError:
                continue
        os.sched_setaffinity(0, allowed)

    def __exit__(self, *exc: object) -> None:
        os.sched_setaffinity(0, self._mine)
