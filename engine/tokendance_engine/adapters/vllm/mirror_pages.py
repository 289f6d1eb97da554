"""KV rows between vLLM's pages and the store: reading for a capture, writing for a restore."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.adapters.vllm.pages import PagedKV, Take
from tokendance_engine.reuse.ports import PageTable
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.restore import Work
from tokendance_engine.storage.rows import ReadRows

Indices = npt.NDArray[np.int64]


def reader(kv: PagedKV, pages: PageTable) -> ReadRows:
    """How the store reads rows of a page table: (layer, tokens int64 [n]) -> K and V, [n, heads, dim] each."""
    # The store asks for the same tokens of one layer after the other.
    plan: list[tuple[Indices, Take]] = []

    @torch.inference_mode()
    def read(layer: int, tokens: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        if not plan or plan[0][0] is not tokens:
            plan[:] = [(tokens, kv.taking(pages, tokens))]
        return plan[0][1](layer)

    return read


@torch.inference_mode()
def write(kv: PagedKV, work: Work, pages: PageTable) -> None:
    """Execute a restore: referenced keys are re-made by the function that made them, all else is copied."""
    places = [(g.segment.rows.layer, kv.placing(g.rows, pages, g.tokens, g.old, g.new)) for g in work.gathers]
    places += [
        (c.layer, kv.placing(np.arange(len(c.tokens)), pages, c.tokens, c.tokens, c.tokens))
        for c in work.copies
    ]
    for layer in range(len(kv.layers)):
        for rows_of, place in places:
            place(layer, *rows_of(layer))


def whole(master: Master) -> bool:
    """Whether every row of a master is stored."""
    return sum(len(segment) for segment in master.segments) == len(master)


@torch.inference_mode()
def write_master(kv: PagedKV, master: Master, pages: PageTable) -> None:
    """Write all stored rows of a master into its pages, as they were computed."""
    for start, segment in zip(master.starts, master.segments, strict=True):
        here = np.arange(len(segment))
        place = kv.placing(here, pages, here + start, here, here)
        for layer in range(len(kv.layers)):
            place(layer, *segment.rows.layer(layer))
