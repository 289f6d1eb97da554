"""The pages of a member between its plan and its admission.

They are filled while vLLM holds the request back, and are keyed only once the worker has confirmed it. So vLLM finds
them like any cached prefix, nobody can meet a page that was promised but not written, and a fault costs nothing but
the work: the request takes vLLM's own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.reuse.plan import Plan
from tokendance_engine.reuse.ports import PageTable

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock


@dataclass(slots=True, eq=False)
class Preparation:
    """Pages [0, len(table)) of a member, each held once.

    Attributes:
        table: page objects in order: cached ones, then the master's and its own.
        cached: how many of them were in the prefix cache.
    """

    table: list[KVCacheBlock]
    cached: int

    @classmethod
    def make(
        cls,
        pool: PagePool,
        cached: Sequence[KVCacheBlock],
        plan: Plan,
        master: Sequence[KVCacheBlock],
        page_size: int,
    ) -> Preparation:
        """Hold the cached pages and the master's, and take free ones for the rest.

        Raises:
            ValueError: not enough pages are free; nothing is held.
        """
        private = plan.private_pages(page_size)
        if len(private) > pool.free - sum(b.ref_cnt == 0 for b in cached):
            raise ValueError(f"{len(private)} pages are needed, {pool.free} are free")
        table: list[KVCacheBlock | None] = [*cached, *[None] * (plan.end // page_size - len(cached))]
        shared = [master[j] for _, j in plan.shared]
        pool.hold([*cached, *shared])
        for (i, _), block in zip(plan.shared, shared, strict=True):
            table[i] = block
        for i, block in zip(private, pool.take(len(private)), strict=True):
            table[i] = block
        return cls([b for b in table if b is not None], len(cached))

    def pages(self) -> PageTable:
        """Page table, int32."""
        return np.array([b.block_id for b in self.table], dtype=np.int32)

    def publish(self, pool: PagePool, keys: Sequence[BlockHash], page_size: int) -> None:
        """Let vLLM find the filled pages under the request's keys."""
        for i in range(self.cached, len(self.table)):
            pool.key(self.table[i], keys[i], (i + 1) * page_size)

    def release(self, pool: PagePool) -> None:
        """Let go of all pages; keyed ones stay in the cache until their space is needed."""
        table, self.table = self.table, []
        pool.let_go(table)
