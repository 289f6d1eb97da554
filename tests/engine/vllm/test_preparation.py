"""A member's pages before vLLM seats it: held, keyed, found and let go, in vLLM's own page pool."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, make_request, out
from tiny_rounds import private
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.page_pool import GROUP
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.reuse.plan import Plan

HISTORIES = (30, 75, 140)


def planned(engine: Engine, first: int = 0) -> list[Member]:
    prompts = [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(HISTORIES)]
    return engine.plan(prompts, first=first)


def references(engine: Engine) -> Counter[int]:
    return Counter({b.block_id: b.ref_cnt for b in engine.blocks.blocks if b.ref_cnt and not b.is_null})


def expected(engine: Engine, members: list[Member]) -> Counter[int]:
    """One reference by the master to each of its pages, and one by every member to each of its own."""
    held = Counter(engine.master().pages().tolist())
    for table in engine.tables(members):
        held.update(table)
    return held


@pytest.mark.parametrize("first", [0, 8])
def test_every_page_counts_exactly_those_that_hold_it(first: int) -> None:
    engine = Engine()
    members = planned(engine, first)
    engine.prepare(members)
    held = expected(engine, members)
    assert references(engine) == held
    assert max(held.values()) == 4, "three members and the master hold a shared page"
    assert engine.free == 200 - len(held)


def test_vllm_finds_all_prepared_pages_of_every_member_under_its_own_keys() -> None:
    engine = Engine()
    members = planned(engine)
    engine.prepare(members)
    for member, table in zip(members, engine.tables(members), strict=True):
        keys = member.request.block_hashes
        assert [b.block_id for b in engine.pool.lookup(keys)] == table
        assert engine.blocks.get_cached_block(keys[len(table) - 1], [GROUP]) is not None
        assert len(keys) > len(table), "what follows is left to vLLM"


def test_nobody_is_found_before_the_worker_confirmed_it() -> None:
    engine = Engine()
    [member, *_] = planned(engine)
    assert member.master is not None
    plan = engine.placement.plan(member, member.master.transcript)
    preparation = Preparation.make(engine.pool, [], plan, member.master.blocks, PAGE)
    assert engine.pool.lookup(member.request.block_hashes) == []
    preparation.publish(engine.pool, member.request.block_hashes, PAGE)
    assert engine.pool.lookup(member.request.block_hashes) == preparation.table


def test_approximate_pages_are_found_by_no_plain_request_of_the_same_tokens() -> None:
    engine = Engine()
    members = planned(engine)
    engine.prepare(members)
    for member in members:
        assert member.plan is not None
        assert member.plan.approximate_from is not None
        exact = member.plan.approximate_from // PAGE
        plain = make_request("plain", member.prompt.tolist())
        assert [b.block_id for b in engine.pool.lookup(plain.block_hashes)] == engine.tables([member])[0][
            :exact
        ]
        user = make_request("user", member.user_prompt.tolist())
        assert len(engine.pool.lookup(user.block_hashes)) <= exact


def test_released_pages_stay_in_the_cache_until_somebody_takes_them() -> None:
    engine = Engine()
    members = planned(engine)
    engine.prepare(members)
    tables = engine.tables(members)
    for member in members:
        assert member.preparation is not None
        preparation = member.preparation
        preparation.release(engine.pool)
        preparation.release(engine.pool)
        assert preparation.table == []
    assert references(engine) == Counter(engine.master().pages().tolist())
    assert engine.free == 200 - len(engine.master().blocks)
    for member, table in zip(members, tables, strict=True):
        assert [b.block_id for b in engine.pool.lookup(member.request.block_hashes)] == table
    engine.pool.take(engine.free)
    shared = set(engine.master().pages().tolist())
    for member, table in zip(members, tables, strict=True):
        assert not {b.block_id for b in engine.pool.lookup(member.request.block_hashes)} - shared
        assert set(table) - shared


def test_a_page_of_the_master_loses_all_members_keys_when_it_is_given_away() -> None:
    engine = Engine()
    members = planned(engine)
    engine.prepare(members)
    ids = {page for table in engine.tables(members) for page in table}
    engine.finish(members)
    assert engine.families.clear()
    assert engine.free == 200
    engine.pool.take(200)
    assert ids
    assert all(b.block_hash is None for b in engine.blocks.blocks)
    for member in members:
        assert all(
            engine.blocks.get_cached_block(key, [GROUP]) is None for key in member.request.block_hashes
        )


def test_too_few_free_pages_are_an_error_that_holds_nothing() -> None:
    engine = Engine()
    [member, *_] = planned(engine)
    assert member.master is not None
    plan = engine.placement.plan(member, member.master.transcript)
    need = len(plan.private_pages(PAGE))
    taken = engine.pool.take(engine.free - need + 1)
    before = references(engine)
    with pytest.raises(ValueError, match=f"{need} pages are needed, {need - 1} are free"):
        Preparation.make(engine.pool, [], plan, member.master.blocks, PAGE)
    assert references(engine) == before
    assert engine.free == need - 1
    engine.pool.let_go(taken[:1])
    assert len(Preparation.make(engine.pool, [], plan, member.master.blocks, PAGE).table) == plan.end // PAGE
    assert engine.free == 0


def plan_of(cached: int, end: int) -> Plan:
    """A plan that computes [cached, end)."""
    none = np.zeros((0, 2), dtype=np.int64)
    runs = np.array([[cached, end]])
    return Plan(cached, end, none, np.zeros((0, 3), dtype=np.int64), runs, 0, 0, end - cached, None)


@pytest.mark.parametrize("in_use", [False, True])
def test_cached_pages_that_are_free_are_no_room_for_their_own_member(in_use: bool) -> None:
    engine = Engine(pages=11)
    cached = engine.pool.take(4)
    for block, key in zip(cached, make_request("r", range(65)).block_hashes, strict=True):
        engine.pool.key(block, key, 64)
    if not in_use:
        engine.pool.let_go(cached)
    rest = engine.pool.take(engine.free - 2 if in_use else engine.free - 6)
    if in_use:
        assert len(Preparation.make(engine.pool, cached, plan_of(64, 96), [], PAGE).table) == 6
        assert [b.ref_cnt for b in cached] == [2] * 4
    else:
        with pytest.raises(ValueError, match="3 pages are needed, 6 are free"):
            Preparation.make(engine.pool, cached, plan_of(64, 112), [], PAGE)
        made = Preparation.make(engine.pool, cached, plan_of(64, 96), [], PAGE)
        assert made.table[:4] == cached
        assert [b.ref_cnt for b in made.table] == [1] * 6
    assert engine.free == 0
    assert all(b.ref_cnt == 1 for b in rest)


def test_cached_pages_keep_the_keys_they_have() -> None:
    engine = Engine()
    request = make_request("r", range(100))
    cached = engine.pool.take(2)
    made = Preparation.make(engine.pool, cached, plan_of(32, 96), [], PAGE)
    made.publish(engine.pool, request.block_hashes, PAGE)
    assert engine.pool.lookup(request.block_hashes) == []
    assert [b.block_hash is None for b in made.table] == [True, True, False, False, False, False]
    assert [b.block_hash_num_tokens for b in made.table[2:]] == [48, 64, 80, 96]
