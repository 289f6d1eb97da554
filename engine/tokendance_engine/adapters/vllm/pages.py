"""Reading K/V rows out of vLLM's pages and writing them back, whatever a backend packs into a page.

Some backends reorder the elements inside a page (CPU: per instruction set). The order is learned once, by writing
index patterns through the backend's own cache writer into a scratch page and reading them back; writes always go
through that writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.kernels.rope import RopeTable, rotate
from tokendance_engine.reuse.ports import MemberJob, PageTable

Index = npt.NDArray[np.int64]
Place = Callable[[int, torch.Tensor, torch.Tensor], None]
"""(layer, K, V of all source rows, [rows, heads, dim] each, contiguous): writes the chosen ones into pages."""
Take = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""(layer) -> K and V, [n, heads, dim] each."""

_DIGIT = 256
"""Index patterns are written in base 256: every digit is exact in bf16, fp16 and fp32."""


class PackingError(RuntimeError):
    """A backend's page packing could not be learned; reuse is switched off."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer's cache.

    Attributes:
        module: vLLM's attention layer; `module.impl.do_kv_cache_update` writes rows.
        cache: [pages, heads, page size, 2 * dim], the pages of this layer.
        rope: how this layer rotates its keys; None if it does not.
    """

    module: Any
    cache: torch.Tensor
    rope: RopeTable | None


@dataclass(frozen=True, slots=True)
class Packing:
    """Where element (token, dim) of a page and head lies: int64 [page size * dim] into the flattened interior."""

    key: torch.Tensor
    value: torch.Tensor


def write_rows(layer: Layer, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Write rows through the backend's own writer.

    Args:
        key, value: [n, heads, dim] in the cache's dtype.
        slots: int64 [n], page * page size + offset.
    """
    layer.module.impl.do_kv_cache_update(layer.module, key, value, layer.cache, slots)


def learn_packing(layer: Layer) -> Packing:
    """Learn the element order inside a page of this layer.

    Raises:
        PackingError: the writer does not fill a page by a fixed permutation that is the same for every head and page,
            or rows do not read back as they were written.
    """
    _, heads, size, width = layer.cache.shape
    dim = width // 2
    scratch = Layer(layer.module, scratch_like(layer.cache, pages=2), layer.rope)
    index = torch.arange(size * dim, device=layer.cache.device)
    found = []
    for plane in range(2):
        seen = torch.full((heads, size * width), -1, dtype=torch.int64, device=layer.cache.device)
        total = torch.zeros_like(seen)
        for power in range(2 if size * dim <= _DIGIT**2 else 3):
            digit = (index // _DIGIT**power) % _DIGIT
            rows = digit.view(size, 1, dim).expand(size, heads, dim).to(layer.cache.dtype).contiguous()
            blank = torch.full_like(rows, -1)
            scratch.cache.fill_(-1)
            key, value = (rows, blank) if plane == 0 else (blank, rows)
            write_rows(scratch, key, value, torch.arange(size, device=index.device) + size)
            got = scratch.cache[1].reshape(heads, -1).to(torch.int64)
            seen = torch.where(got >= 0, got, seen)
            total += got * _DIGIT**power
        filled = seen >= 0
        if int(filled.sum()) != heads * size * dim or not bool((filled == filled[0]).all()):
            raise PackingError("the backend's writer does not fill a page evenly")
        where = filled[0].nonzero().squeeze(1)
        order = total[:, where]
        if not bool((order == order[0]).all()) or not torch.equal(order[0].sort().values, index):
            raise PackingError("the backend's page packing is not a fixed permutation")
        found.append(where[order[0].argsort()])
    packing = Packing(*found)
    _check_rows(scratch, packing)
    return packing


def _check_rows(scratch: Layer, packing: Packing) -> None:
    """Index patterns are the same for all heads and slots, so heads or slots that change places show only here."""
    pages, heads, size, width = scratch.cache.shape
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, pages * size, heads, width // 2, generator=generator).to(scratch.cache)
    slots = torch.randperm(pages * size, generator=generator).to(scratch.cache.device)
    write_rows(scratch, rows[0], rows[1], slots)
    for plane, where in zip(rows, (packing.key, packing.value), strict=True):
        stored = scratch.cache.reshape(pages, heads, -1)[:, :, where].view(pages, heads, size, -1)
        if not torch.equal(stored.transpose(1, 2).flatten(0, 1)[slots], plane):
            raise PackingError("the backend's writer puts rows into other heads or slots than it was told")


def scratch_like(cache: torch.Tensor, pages: int) -> torch.Tensor:
    """Empty pages with the memory order of `cache` inside a page."""
    order = sorted(range(1, cache.dim()), key=cache.stride, reverse=True)
    shape = [pages, *(cache.shape[d] for d in order)]
    scratch = torch.empty(shape, dtype=cache.dtype, device=cache.device)
    return scratch.permute(0, *(order.index(d) + 1 for d in range(1, cache.dim())))


class PagedKV:
    """All layers' pages of one KV cache group.

    Args:
        layers: in forward order; all have the same page size, heads, head size and packing.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        _, self.heads, self.page_size, width = self.layers[0].cache.shape
        self.dim = width // 2
        self.packing = learn_packing(self.layers[0])

    def read(self, layer: Layer, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole pages as rows.

        Args:
            pages: int64 [n].

        Returns:
            key, value: [n * page size, heads, dim], as stored.
        """
        inside = layer.cache[pages].reshape(len(pages), self.heads, -1)
        return self._rows(inside, self.packing.key), self._rows(inside, self.packing.value)

    def _rows(self, inside: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        plane = inside.index_select(2, where).view(-1, self.heads, self.page_size, self.dim)
        return plane.transpose(1, 2).reshape(-1, self.heads, self.dim)

    @torch.inference_mode()
    def remake(
        self, layer: int, keys: torch.Tensor, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Keys [n, heads, dim] in host memory as `restore` would write them elsewhere, to the last bit.

        Args:
            old, new: positions the keys stand at and must stand at, int64 [n].
        """
        rope = self.layers[layer].rope
        if rope is None or np.array_equal(old, new):
            return keys
        device = self.layers[layer].cache.device
        cos, sin = rotation(rope, old, new, device)
        return rotate(keys.to(device), cos, sin, neox=rope.neox).to(keys.device)

    def placing(self, rows: Index, pages: PageTable, tokens: Index, old: Index, new: Index) -> Place:
        """How rows of host memory get into pages, worked out once for all layers.

        Args:
            rows: rows to take, int64 [n].
            pages: page table of the tokens.
            tokens: where they go, int64 [n].
            old, new: positions their keys stand at and must stand at, int64 [n].
        """
        device = self.layers[0].cache.device
        at, take = self._slots(pages, tokens, device), torch.from_numpy(rows)

        def place(layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
            made = self.remake(layer, key.index_select(0, take), old, new)
            write_rows(self.layers[layer], made.to(device), value.index_select(0, take).to(device), at)

        return place

    def taking(self, pages: PageTable, tokens: Index) -> Take:
        """How tokens' rows are read, K and V [n, heads, dim] as stored, worked out once for all layers.

        Args:
            pages: page table of the tokens.
            tokens: int64 [n], in any order.
        """
        device = self.layers[0].cache.device
        used, place = np.unique(tokens // self.page_size, return_inverse=True)
        rows = place.astype(np.int64) * self.page_size + tokens % self.page_size
        from_pages = torch.from_numpy(pages[used].astype(np.int64)).to(device)
        at = torch.from_numpy(rows).to(device)

        def take(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
            key, value = self.read(self.layers[layer], from_pages)
            return key.index_select(0, at), value.index_select(0, at)

        return take

    def _slots(self, pages: PageTable, tokens: Index, device: torch.device) -> torch.Tensor:
        page = pages[tokens // self.page_size].astype(np.int64)
        return torch.from_numpy(page * self.page_size + tokens % self.page_size).to(device)

    @torch.inference_mode()
    def restore(self, jobs: Sequence[MemberJob]) -> None:
        """Write every restore span of every job, keys rotated from master row to prompt position (layer by layer)."""
        work = [Restore.of(job, self.page_size) for job in jobs if len(job.moves)]
        if not work:
            return
        ropes = {id(layer.rope): layer.rope for layer in self.layers if layer.rope is not None}
        device = self.layers[0].cache.device
        on_device = [
            (
                torch.from_numpy(w.master_pages.astype(np.int64)).to(device),
                torch.from_numpy(w.rows).to(device),
                torch.from_numpy(w.slots).to(device),
                {key: w.angles(rope, device) for key, rope in ropes.items()},
            )
            for w in work
        ]
        for layer in self.layers:
            for pages, rows, slots, angles in on_device:
                key, value = (plane.index_select(0, rows) for plane in self.read(layer, pages))
                if layer.rope is not None:
                    key = rotate(key, *angles[id(layer.rope)], neox=layer.rope.neox)
                write_rows(layer, key, value, slots)


@dataclass(frozen=True, slots=True)
class Restore:
    """Indices of one job's restore spans, row by row; the same for all layers.

    Attributes:
        master_pages: the master's page table.
        rows: master rows, int64 [n].
        old, new: positions the row's key was computed at and goes to, int64 [n].
        slots: page * page size + offset of each target, int64 [n].
    """

    master_pages: PageTable
    rows: npt.NDArray[np.int64]
    old: npt.NDArray[np.int64]
    new: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]

    @classmethod
    def of(cls, job: MemberJob, page_size: int) -> Restore:
        """Expand a job's spans."""
        row, index, length, old, new = job.moves.T
        # Row by row: where its span starts, plus how far into the span it is.
        inside = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        rows, at, before, after = (np.repeat(first, length) + inside for first in (row, index, old, new))
        slots = job.pages[at // page_size].astype(np.int64) * page_size + at % page_size
        return cls(job.master_pages, rows, before, after, slots)

    def angles(self, rope: RopeTable, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of every row's rotation, as `rotation`."""
        return rotation(rope, self.old, self.new, device)


def rotation(
    rope: RopeTable, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every row's rotation; rows that stay where they are keep their very bytes."""
    cos, sin = rope.difference(torch.from_numpy(old).to(device), torch.from_numpy(new).to(device))
    stays = torch.from_numpy(old == new).to(device)[:, None, None]
    return cos.masked_fill(stays, 1.0), sin.masked_fill(stays, 0.0)
