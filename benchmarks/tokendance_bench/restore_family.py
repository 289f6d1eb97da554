"""A family of mirrors in vLLM's pages and in the store, for the `restore` benchmark; needs vLLM's CPU build."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

PAGE, ISA = 32, "vec"
Table = npt.NDArray[np.int32]


class Writer:
    """vLLM's cache writer, called as its CPU attention backend calls it."""

    def do_kv_cache_update(
        self, module: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        import vllm._custom_ops as ops

        pages, heads, size, _ = cache.size()
        planes = cache.view(pages, heads, size * 2, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            key, value, *planes, slots, ISA, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
        )


@dataclass(slots=True)
class Family:
    """Members as they were captured.

    Attributes:
        kv: the connector's pages.
        store: what captured them.
        key: the family's name in it.
        tables: page table of every member.
        tokens: tokens of every member.
        truth: all pages of all layers, as they were captured.
    """

    kv: Any
    store: Any
    key: Any
    tables: list[Table]
    tokens: int
    truth: list[torch.Tensor]

    def scribble(self) -> None:
        """Fill the members' pages with garbage."""
        for layer in self.kv.layers:
            for table in self.tables:
                layer.cache[torch.from_numpy(table).long()] = 3.0

    def wrong_pages(self) -> int:
        """Pages of members that are not what they were, to the last bit."""
        wrong = 0
        for layer, then in zip(self.kv.layers, self.truth, strict=True):
            for table in self.tables:
                at = torch.from_numpy(table).long()
                same = layer.cache[at].view(torch.uint8) == then[at].view(torch.uint8)
                wrong += int((~same.flatten(1).all(1)).sum())
        return wrong


def family(
    members: int, shared: int, own: float, layers: int, heads: int, dim: int, dtype: torch.dtype
) -> Family:
    """Members of a round: a private head, then a master's rows moved to their places, some of them replaced.

    Args:
        shared: rows of the master.
        own: share of a member's tokens that are its own: half of them first, the rest in blocks of 16 between.
    """
    from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV
    from tokendance_engine.adapters.vllm.mirror_pages import reader
    from tokendance_engine.adapters.vllm.pages import Layer, write_rows
    from tokendance_engine.kernels.rope import RopeTable
    from tokendance_engine.reuse.ports import MemberJob
    from tokendance_engine.storage.handover import Taken
    from tokendance_engine.storage.keys import Keys, Scope
    from tokendance_engine.storage.layout import DTYPES, Layout, Model
    from tokendance_engine.storage.store import Store
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    shared = shared // PAGE * PAGE
    private = int(shared * own / (1 - own) / 2)
    tokens = -(-(shared + private) // PAGE) * PAGE
    each, master_pages = tokens // PAGE, shared // PAGE
    angles = torch.arange(2 * tokens).float()[:, None] * 1e4 ** (-torch.arange(0, dim, 2).float() / dim)
    rope = RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1))
    generator = torch.Generator().manual_seed(0)
    pages = master_pages + members * each
    stack = [
        Layer(
            SimpleNamespace(impl=Writer()),
            torch.randn(pages, heads, PAGE, 2 * dim, generator=generator).to(dtype),
            rope,
        )
        for _ in range(layers)
    ]
    kv = CpuPagedKV(stack)
    name = {v: k for k, v in DTYPES.items()}[dtype]
    keys = Keys(Model("restore", Layout(layers, heads, dim, name)), Scope.SESSION, b"0" * 32)
    store = Store(keys, 16 << 30, remake=kv.remake)
    key = keys.family("", "s")
    master = np.arange(master_pages, dtype=np.int32)
    ids = np.arange(shared, dtype=np.int32)
    store.put_master(key, 1, ids, reader(kv, master))
    rng = np.random.default_rng(0)
    tables: list[Table] = [np.arange(each, dtype=np.int32) + master_pages + i * each for i in range(members)]
    for i, table in enumerate(tables):
        # Other members' histories are longer or shorter, so every one has a phase of its own.
        begin = tokens - shared - i
        moves = np.array([[0, begin, shared, 0, begin]])
        kv.restore([MemberJob("m", 1, master, table, moves, [])])
        fresh = (rng.random(shared // 16) < own / 2).repeat(16)
        rows = np.flatnonzero(np.concatenate([np.ones(begin, bool), fresh, np.ones(i, bool)]))
        slots = torch.from_numpy(table[rows // PAGE].astype(np.int64) * PAGE + rows % PAGE)
        for layer in stack:
            both = torch.randn(2, len(rows), heads, dim, generator=generator).to(dtype)
            write_rows(layer, both[0], both[1], slots)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], fresh, [True])).astype(np.int8))).reshape(
            -1, 2
        )
        spans = np.column_stack([edges[:, 0], edges[:, 0] + begin, edges[:, 1] - edges[:, 0]])
        own_ids = np.arange(begin + i, dtype=np.int32) + 100_000 * (i + 1)
        text = np.concatenate([own_ids[:begin], ids, own_ids[begin:]])
        store.put_mirror(key, f"a{i}", text, Taken(1, spans), reader(kv, table))
    return Family(kv, store, key, tables, tokens, [layer.cache.clone() for layer in stack])
