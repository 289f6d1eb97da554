"""A wrong reference count is found, whoever is to blame: vLLM's real manager, pool and page tables."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("vllm")

from planned_rounds import PAGE, make_request
from tokendance_engine.adapters.vllm.integrity import check_references
from tokendance_engine.adapters.vllm.page_pool import PagePool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

PAGES = 41


def make_manager() -> KVCacheManager:
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(PAGES, [], [KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(
        config, max_model_len=1024, scheduler_block_size=PAGE, hash_block_size=PAGE, enable_caching=True
    )


def seat(manager: KVCacheManager, name: str, tokens: int) -> None:
    """Let vLLM give a request its page table, with what it finds in its cache."""
    request = make_request(name, range(tokens))
    found, cached, _ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, tokens - cached, cached, found) is not None


def test_requests_and_our_own_holders_account_for_every_page() -> None:
    manager = make_manager()
    pool = PagePool(manager.block_pool)
    check_references(manager, [])
    seat(manager, "one", 100)
    seat(manager, "two", 150)  # finds what the first has
    assert max(b.ref_cnt for b in manager.block_pool.blocks if not b.is_null) == 2
    master = pool.take(3)
    pool.hold(master[:2])
    check_references(manager, [master, master[:2]])


def test_a_page_that_somebody_forgot_to_free_is_found() -> None:
    manager = make_manager()
    leaked = PagePool(manager.block_pool).take(1)
    with pytest.raises(AssertionError, match=rf"{{{leaked[0].block_id}: \(1, 0\)}}"):
        check_references(manager, [])


def test_a_page_let_go_once_too_often_is_found() -> None:
    manager = make_manager()
    pool = PagePool(manager.block_pool)
    master = pool.take(2)
    pool.let_go(master[:1])
    with pytest.raises(AssertionError, match=r"\(0, 1\)"):
        check_references(manager, [master])


def test_a_holder_that_was_not_counted_is_found() -> None:
    manager = make_manager()
    seat(manager, "one", 100)
    table = manager.coordinator.single_type_managers[0].req_to_blocks["one"]
    with pytest.raises(AssertionError, match=r"\(1, 2\)"):
        check_references(manager, [table[:1]])


def test_a_page_that_is_neither_free_nor_held_is_found() -> None:
    manager = make_manager()
    [lost] = PagePool(manager.block_pool).take(1)
    lost.ref_cnt = 0
    with pytest.raises(AssertionError, match=f"{PAGES - 2} pages are free, {PAGES - 1} should be"):
        check_references(manager, [])
