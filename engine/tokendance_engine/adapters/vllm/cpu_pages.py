"""The fast restore for vLLM's CPU build: one fused pass per layer, verified against the backend's own writer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tokendance_engine.adapters.vllm.pages import (
    Layer,
    PackingError,
    PagedKV,
    Place,
    Restore,
    Take,
    rotation,
    scratch_like,
    write_rows,
)
from tokendance_engine.kernels import cpu
from tokendance_engine.kernels.cpu_moves import Runs, Turns, move
from tokendance_engine.kernels.cpu_planes import Index, PackedPlane, Separable, supported
from tokendance_engine.kernels.rope import RopeTable, rotate
from tokendance_engine.reuse.ports import MemberJob, PageTable


class CpuPagedKV(PagedKV):
    """Pages restored by `kernels.cpu`.

    Raises:
        PackingError: this path does not fit the pages; use `PagedKV`.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(layers)
        dtype = self.layers[0].cache.dtype
        if not supported(dtype):
            raise PackingError(f"no raw stores for {dtype}")
        key = Separable.of(self.packing.key, self.page_size)
        value = Separable.of(self.packing.value, self.page_size)
        if key is None or value is None:
            raise PackingError("the page packing is not separable")
        self._key, self._value = key, value
        self._planes = [self._planes_of(layer.cache) for layer in self.layers]
        with _all_cores():
            for layer in {id(x.rope): x for x in self.layers}.values():
                self._verify(layer)
            self._compile_rest()

    @torch.inference_mode()
    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """As `PagedKV.restore`, all members in one pass per layer."""
        work = [Restore.of(job, self.page_size) for job in jobs if len(job.moves)]
        if work:
            runs, turns = self._of_work(work, self._ropes())
            for layer, planes in zip(self.layers, self._planes, strict=True):
                cpu.restore(planes, planes, runs, turns[id(layer.rope)])

    @torch.inference_mode()
    def remake(self, layer: int, keys: torch.Tensor, old: Index, new: Index) -> torch.Tensor:
        """As `PagedKV.remake`: the same compiled pass, over rows that lie one after the other."""
        rope = self.layers[layer].rope
        if rope is None or np.array_equal(old, new):
            return keys
        row, page = np.arange(len(keys)), np.zeros(len(keys), dtype=np.int64)
        runs = Runs.of(page, row, page, row)
        keys = keys.contiguous()
        made = torch.empty_like(keys)
        turns = _turns(rope, runs, old, new)
        move(PackedPlane.of_rows(keys), PackedPlane.of_rows(made), runs, turns)
        return made

    def placing(self, rows: Index, pages: PageTable, tokens: Index, old: Index, new: Index) -> Place:
        """As `PagedKV.placing`: gathered, rotated and written in one pass."""
        to_page, to_row = self._places(pages, tokens)
        runs = Runs.of(np.zeros(len(rows), dtype=np.int64), rows, to_page, to_row)
        turns = {key: _turns(rope, runs, old, new) for key, rope in self._ropes().items()}

        def place(layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
            source = cpu.Planes(PackedPlane.of_rows(key), PackedPlane.of_rows(value))
            cpu.restore(source, self._planes[layer], runs, turns[id(self.layers[layer].rope)])

        return place

    def taking(self, pages: PageTable, tokens: Index) -> Take:
        """As `PagedKV.taking`: only these rows are read, straight into place."""
        n, (page, row) = len(tokens), self._places(pages, tokens)
        runs = Runs.of(page, row, np.zeros(n, dtype=np.int64), np.arange(n, dtype=np.int64))

        def take(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
            made = torch.empty(2, n, self.heads, self.dim, dtype=self.layers[layer].cache.dtype)
            cpu.restore(
                self._planes[layer], cpu.Planes(*(PackedPlane.of_rows(plane) for plane in made)), runs
            )
            return made[0], made[1]

        return take

    def _places(self, pages: PageTable, tokens: Index) -> tuple[Index, Index]:
        return pages[tokens // self.page_size].astype(np.int64), tokens % self.page_size

    def _planes_of(self, cache: torch.Tensor) -> cpu.Planes:
        key, value = (PackedPlane.of_pages(cache, at) for at in (self._key, self._value))
        if key is None or value is None:
            raise PackingError("the pages are not contiguous inside")
        return cpu.Planes(key, value)

    def _ropes(self) -> dict[int, RopeTable | None]:
        return {id(layer.rope): layer.rope for layer in self.layers}

    def _of_work(
        self, work: Sequence[Restore], ropes: dict[int, RopeTable | None]
    ) -> tuple[Runs, dict[int, Turns | None]]:
        rows, slots, old, new = (
            np.concatenate([getattr(w, name) for w in work]) for name in ("rows", "slots", "old", "new")
        )
        source = np.concatenate([w.master_pages[w.rows // self.page_size] for w in work]).astype(np.int64)
        runs = Runs.of(source, rows % self.page_size, slots // self.page_size, slots % self.page_size)
        return runs, {key: _turns(rope, runs, old, new) for key, rope in ropes.items()}

    def _compile_rest(self) -> None:
        """Rows outside pages are other loops: compile those here, not while a round waits."""
        one = torch.zeros(1, self.heads, self.dim, dtype=self.layers[0].cache.dtype)
        for layer in {id(x.rope): i for i, x in enumerate(self.layers)}.values():
            self.remake(layer, one, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))

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
        planes = self._planes_of(ours.cache)
        runs, turns = self._of_work([Restore.of(job, size)], {id(layer.rope): layer.rope})
        cpu.restore(planes, planes, runs, turns[id(layer.rope)])
        self._compare(ours, theirs)
        # The same rows from outside the pages, and out of the pages again: other loops of the same kernel.
        ours.cache[2:].zero_()
        here, none, slots = np.arange(size), np.zeros(size, dtype=np.int64), (new + 2 * size).numpy()
        dense = cpu.Planes(*(PackedPlane.of_rows(plane) for plane in rows))
        into = Runs.of(none, here, slots // size, slots % size)
        cpu.restore(dense, planes, into, _turns(layer.rope, into, old.numpy(), new.numpy()))
        self._compare(ours, theirs)
        back = torch.zeros_like(rows)
        out = cpu.Planes(*(PackedPlane.of_rows(plane) for plane in back))
        cpu.restore(planes, out, Runs.of(none + 1, here, none, here))
        if not torch.equal(back, rows):
            raise PackingError("raw reads differ from what the attention backend's own writer wrote")

    def _compare(self, ours: Layer, theirs: Layer) -> None:
        a, b = (self.read(copy, torch.arange(4)) for copy in (ours, theirs))
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3}[ours.cache.dtype]
        if not torch.equal(a[1], b[1]) or not torch.allclose(a[0], b[0], rtol=tolerance, atol=tolerance):
            raise PackingError("raw stores differ from the attention backend's own writer")


def _turns(rope: RopeTable | None, runs: Runs, old: Index, new: Index) -> Turns | None:
    """How keys turn; None where none does."""
    if rope is None or np.array_equal(old, new):
        return None
    cos, sin = (x[:, 0].contiguous().numpy() for x in rotation(rope, old, new, torch.device("cpu")))
    return Turns(runs, cos, sin, rope.neox)


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
