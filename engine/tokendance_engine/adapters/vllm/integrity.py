"""Do vLLM's reference counts equal the references there are? Tests and every fault ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


def check_references(manager: KVCacheManager, ours: Sequence[Sequence[KVCacheBlock]]) -> None:
    """Compare every page's count with the page tables of all requests and with our own holders.

    Args:
        manager: vLLM's, with one KV cache group.
        ours: page lists that hold one reference to each of their pages.

    Raises:
        AssertionError: a count is wrong, a page was leaked, or a page is free and held at once.
    """
    (group,) = manager.coordinator.single_type_managers
    holders = [*group.req_to_blocks.values(), *ours]
    held = Counter(block.block_id for blocks in holders for block in blocks if not block.is_null)
    wrong = {
        block.block_id: (block.ref_cnt, held[block.block_id])
        for block in manager.block_pool.blocks
        if not block.is_null and block.ref_cnt != held[block.block_id]
    }
    assert not wrong, f"pages with (counted, held) references: {dict(list(wrong.items())[:8])}"
    free = manager.block_pool.get_num_free_blocks()
    expected = manager.block_pool.num_gpu_blocks - 1 - len(held)
    assert free == expected, f"{free} pages are free, {expected} should be"
