"""KV rows between vLLM's pages and the store: reading for a capture, writing for a restore."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.adapters.vllm.pages import PagedKV, write_rows
from tokendance_engine.reuse.ports import PageTable
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.restore import Work
from tokendance_engine.storage.rows import ReadRows

Indices = npt.NDArray[np.int64]


def reader(kv: PagedKV, pages: PageTable) -> ReadRows:
    """How the store reads rows of a page table: (layer, tokens int64 [n]) -> K and V, [n, heads, dim] each."""

    @torch.inference_mode()
    def read(layer: int, tokens: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        used, place = np.unique(tokens // kv.page_size, return_inverse=True)
        of = kv.layers[layer]
        device = of.cache.device
        key, value = kv.read(of, torch.from_numpy(pages[used].astype(np.int64)).to(device))
        rows = place.astype(np.int64) * kv.page_size + tokens % kv.page_size
        if len(rows) == len(key) and bool((np.diff(rows) == 1).all()):
            return key, value
        at = torch.from_numpy(rows).to(device)
        return key.index_select(0, at), value.index_select(0, at)

    return read


@torch.inference_mode()
def write(kv: PagedKV, work: Work, pages: PageTable) -> None:
    """Execute a restore: referenced keys are re-made by the function that made them, all else is copied."""
    device = kv.layers[0].cache.device

    def slots(tokens: Indices) -> torch.Tensor:
        page = pages[tokens // kv.page_size].astype(np.int64)
        return torch.from_numpy(page * kv.page_size + tokens % kv.page_size).to(device)

    gathers = [(g, torch.from_numpy(g.rows), slots(g.tokens)) for g in work.gathers]
    copies = [(c, slots(c.tokens)) for c in work.copies]
    for number, layer in enumerate(kv.layers):
        for gather, rows, to in gathers:
            key, value = (plane.index_select(0, rows) for plane in gather.segment.rows.layer(number))
            key = kv.remake(number, key, gather.old, gather.new)
            write_rows(layer, key.to(device), value.to(device), to)
        for copy, to in copies:
            key, value = copy.layer(number)
            write_rows(layer, key.to(device), value.to(device), to)


def whole(master: Master) -> bool:
    """Whether every row of a master is stored."""
    return sum(len(segment) for segment in master.segments) == len(master)


@torch.inference_mode()
def write_master(kv: PagedKV, master: Master, pages: PageTable) -> None:
    """Write all stored rows of a master into its pages, as they were computed."""
    device = kv.layers[0].cache.device
    for start, segment in zip(master.starts, master.segments, strict=True):
        rows = np.arange(start, start + len(segment))
        page = pages[rows // kv.page_size].astype(np.int64)
        slots = torch.from_numpy(page * kv.page_size + rows % kv.page_size).to(device)
        for number, layer in enumerate(kv.layers):
            key, value = segment.rows.layer(number)
            write_rows(layer, key.to(device), value.to(device), slots)
