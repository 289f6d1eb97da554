"""Idle masters and vLLM's cached pages compete for the same pool."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from master_pools import PAGE, Setup
from tokendance_engine.adapters.vllm.family import Family
from tokendance_engine.adapters.vllm.rekey import Chain, Disposition
from tokendance_sdk.protocol import MAX_ROUND_SIZE
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)
HASHER = get_request_block_hasher(PAGE, sha256)


@pytest.mark.parametrize("in_use", [False, True])
def test_cached_pages_that_nobody_uses_are_no_room_for_the_request_that_takes_them(in_use: bool) -> None:
    setup = Setup()
    setup.master("s", 10 * PAGE)  # leaves 22 of 32
    request = Request("r", list(range(24 * PAGE)), SamplingParams(), None, block_hasher=HASHER)
    cached = setup.pool.get_new_blocks(20)
    setup.pool.cache_full_blocks(request, cached, 0, 20, PAGE, 0)
    if not in_use:
        setup.pool.free_blocks(cached)
    keys = request.block_hashes[:20]
    assert setup.pages.lookup(keys) == cached
    setup.families.make_room(24, keys)
    pages = sum(row["pages"] for row in setup.families.snapshot())
    # Cached and in use: 4 more pages are needed and 2 are free. Cached and free: 24 are needed of 22.
    assert pages == 0
    assert setup.free >= 24 - 20 * in_use


def test_a_master_stays_where_cached_pages_in_use_leave_room_enough() -> None:
    setup = Setup()
    setup.master("s", 10 * PAGE)
    request = Request("r", list(range(22 * PAGE)), SamplingParams(), None, block_hasher=HASHER)
    cached = setup.pool.get_new_blocks(20)
    setup.pool.cache_full_blocks(request, cached, 0, 20, PAGE, 0)
    setup.families.make_room(22, request.block_hashes[:20])
    assert sum(row["pages"] for row in setup.families.snapshot()) == 10
    setup.pool.free_blocks(cached)


def test_a_session_remembers_as_many_agents_as_a_round_can_have() -> None:
    family = Family()
    chain = Chain(np.zeros(1, dtype=np.int32), Disposition())
    for i in range(MAX_ROUND_SIZE + 5):
        family.remember(f"a{i}", chain)
        family.remember("a0", chain)
    assert len(family.chains) == MAX_ROUND_SIZE
    assert "a0" in family.chains, "the newest is kept"
    assert "a1" not in family.chains
