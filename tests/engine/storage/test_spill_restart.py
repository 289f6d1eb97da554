"""Families below memory: evicted and restarted ones come back bit for bit; anything broken is a counted miss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from storage_samples import (
    SMALL,
    Member,
    assert_restores,
    keys,
    make_member,
    random_rows,
    random_tokens,
    reader,
)
from tokendance_engine.storage.codec import HEADER_BYTES
from tokendance_engine.storage.keys import Keys, Scope, digest
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.spill import Spill
from tokendance_engine.storage.store import Store
from tokendance_engine.storage.tiers import MemoryTier, Tier

CHUNK = 20_000
"""Payload of a blob here: rows take several."""


def open_store(tier: Tier, made: Keys | None = None, budget: int = 1 << 26) -> Store:
    made = made or keys()
    return Store(made, budget, spill=Spill(made, tier, CHUNK))


def fill(store: Store, session: str = "s", agents: int = 3, seed: int = 0) -> dict[str, Member]:
    rng = np.random.default_rng(seed)
    layout = store.keys.model.layout
    master, master_kv = random_tokens(rng, 80), random_rows(layout, 80, seed)
    family = store.keys.family("t", session)
    store.put_master(family, 1, master, reader(master_kv), cuts=(30,))
    members = {}
    for i in range(agents):
        own = np.arange(100) < 20 + i
        member = members[f"a{i}"] = make_member(layout, master, master_kv, 20, own, seed + i + 1)
        got = store.put_mirror(
            family, f"a{i}", member.tokens, member.taken(), reader(member.kv), approximate_from=20
        )
        assert got is not None
    return members


def assert_all_back(store: Store, members: dict[str, Member], session: str = "s") -> None:
    family = store.keys.family("t", session)
    for agent, member in members.items():
        found = store.find(family, agent, member.tokens)
        assert found is not None, agent
        assert (found.tokens, found.approximate_from) == (len(member.tokens), 20)
        assert_restores(store, family, agent, member.kv, store.keys.model.layout)
    store.check()


def test_a_restarted_engine_finds_its_families(tier: Tier) -> None:
    first = open_store(tier)
    members = fill(first)
    first.flush(first.keys.family("t", "s"))
    second = open_store(tier)
    assert_all_back(second, members)
    report = second.report()
    assert report.tier is not None
    assert report.tier.hits == 3
    assert sum(report.tier.broken.values()) == 0
    assert second.master(second.keys.family("t", "s")) is not None
    second.check()
    assert second.report().used == first.report().used


def test_an_evicted_family_is_spilled_first_and_comes_back(tier: Tier) -> None:
    store = open_store(tier, budget=CHUNK + HEADER_BYTES + 220 * SMALL.row_bytes)
    members = {f"s{i}": fill(store, f"s{i}", seed=10 * i) for i in range(4)}
    assert store.report().counts.evicted == 3
    for session, its in members.items():
        assert_all_back(store, its, session)


def test_a_round_writes_only_what_is_new() -> None:
    tier = MemoryTier(1 << 26)
    store = open_store(tier)
    members = fill(store)
    family = store.keys.family("t", "s")
    store.flush(family)
    counts = store.report().tier
    assert counts is not None
    before = counts.saved_rows
    assert before == 80 + 20 + 21 + 22
    store.flush(family)
    assert counts.saved_rows == before

    a0 = members["a0"]
    longer = Member(
        np.concatenate([a0.tokens, random_tokens(np.random.default_rng(9), 30)]),
        torch.cat([a0.kv, random_rows(SMALL, 30, 9)], dim=2),
        a0.spans,
    )
    store.put_mirror(family, "a0", longer.tokens, None, reader(longer.kv), same=100)
    store.flush(family)
    assert counts.saved_rows == before + 30


def test_what_a_newer_mirror_no_longer_needs_is_deleted_and_a_release_leaves_nothing() -> None:
    tier = MemoryTier(1 << 26)
    store = open_store(tier)
    fill(store)
    family = store.keys.family("t", "s")
    store.flush(family)
    size = tier.used
    for seed in range(3):
        fill(store, seed=seed + 50)
        store.flush(family)
        assert tier.used == size
    assert store.release(family)
    assert not tier.blobs


def test_segments_of_members_that_only_the_tier_holds_are_kept() -> None:
    tier = MemoryTier(1 << 26)
    first = open_store(tier)
    members = fill(first)
    family = first.keys.family("t", "s")
    first.flush(family)
    second = open_store(tier)
    members["a0"] = fill(second, agents=1, seed=50)["a0"]
    second.flush(family)
    assert_all_back(open_store(tier), members)


def test_a_release_of_a_family_written_once_leaves_nothing(tier: Tier) -> None:
    store = open_store(tier)
    members = fill(store)
    family = store.keys.family("t", "s")
    store.flush(family)
    assert store.release(family)
    again = open_store(tier)
    assert all(again.find(family, agent, m.tokens) is None for agent, m in members.items())
    if isinstance(tier, MemoryTier):
        assert not tier.blobs


Damage = Callable[[np.ndarray], np.ndarray]
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "truncated": (lambda b: b[: len(b) // 2].copy(), {"truncated"}),
    "empty": (lambda b: b[:0].copy(), {"truncated"}),
    "flipped": (lambda b: np.concatenate([b[:-1], b[-1:] ^ 1]), {"checksum"}),
    "older version": (lambda b: np.concatenate([b[:4], np.zeros(2, np.uint8), b[6:]]), {"version"}),
    "foreign": (lambda b: np.full_like(b, 7), {"foreign"}),
}


def each_blob(damage: str) -> Iterator[tuple[Store, dict[str, Member], set[str]]]:
    """A restarted store for every blob of a spilled family, that one blob damaged."""
    tier = MemoryTier(1 << 26)
    first = open_store(tier)
    members = fill(first, agents=1)
    first.flush(first.keys.family("t", "s"))
    change, reasons = DAMAGES[damage]
    for name in list(tier.blobs):
        broken = MemoryTier(1 << 26)
        broken.blobs.update({n: blob.copy() for n, blob in tier.blobs.items()})
        broken.blobs[name] = change(broken.blobs[name])
        yield open_store(broken), members, reasons


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damaged_blob_is_a_counted_miss_or_not_needed(damage: str) -> None:
    misses = 0
    for store, members, reasons in each_blob(damage):
        family = store.keys.family("t", "s")
        member = members["a0"]
        found = store.find(family, "a0", member.tokens)
        counts = store.report().tier
        assert counts is not None
        if found is None:
            misses += 1
            assert {r for r, n in counts.broken.items() if n} == reasons
            assert store.report().used == 0
        else:
            assert_restores(store, family, "a0", member.kv, SMALL)
        fill(store, agents=1)  # captured anew, it can be spilled over the damage
        store.flush(family)
        store.check()
    assert misses >= 8, "root, document, two segments and rows of several blobs"


def test_a_damaged_member_can_be_written_and_found_again() -> None:
    for store, _, _ in each_blob("flipped"):
        family = store.keys.family("t", "s")
        store.find(family, "a0", np.zeros(1, dtype=np.int32))
        members = fill(store, agents=1, seed=77)
        store.flush(family)
        spill = store._spill
        assert spill is not None
        fresh = Store(store.keys, 1 << 26, spill=Spill(store.keys, spill._tier, CHUNK))
        assert_all_back(fresh, members)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"revision": "2"},
        {"rope": "yarn"},
        {"adapter": "lora"},
        {"rank": 1, "ranks": 2},
    ],
)
def test_another_model_finds_nothing(other: dict[str, object]) -> None:
    tier = MemoryTier(1 << 26)
    first = open_store(tier)
    members = fill(first)
    first.flush(first.keys.family("t", "s"))
    stranger = open_store(tier, replace(first.keys, model=replace(first.keys.model, **other)))
    family = stranger.keys.family("t", "s")
    assert all(stranger.find(family, agent, m.tokens) is None for agent, m in members.items())


def test_a_blob_of_another_layout_under_the_same_name_is_refused() -> None:
    tier = MemoryTier(1 << 26)
    bf16 = keys(Layout(2, 2, 64, "bfloat16"))
    first = open_store(tier, bf16)
    fill(first, agents=1)
    family = first.keys.family("t", "s")
    first.flush(family)
    fp16 = keys(Layout(2, 2, 64, "float16"))
    moved = {fp16.mirror(family, "a0"): bf16.mirror(family, "a0")}
    for new, old in moved.items():
        zero = (0).to_bytes(4, "little")
        tier.blobs[digest(new, zero)] = tier.blobs[digest(old, zero)]
    second = open_store(tier, fp16)
    assert second.find(family, "a0", np.zeros(1, dtype=np.int32)) is None
    counts = second.report().tier
    assert counts is not None
    assert counts.broken["layout"] >= 1


class Failing(MemoryTier):
    """A tier whose disk is full after so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__(1 << 26)
        self.writes = writes

    def put(self, name: bytes, blob: np.ndarray) -> bool:
        self.writes -= 1
        return self.writes >= 0 and super().put(name, blob)


@pytest.mark.parametrize("writes", range(0, 40, 3))
def test_a_disk_that_fills_up_in_the_middle_loses_members_and_never_mixes_them(writes: int) -> None:
    tier = Failing(writes)
    first = open_store(tier)
    members = fill(first)
    family = first.keys.family("t", "s")
    first.flush(family)
    counts = first.report().tier
    assert counts is not None
    tier.writes = 1 << 30
    second = open_store(tier)
    back = 0
    for agent, member in members.items():
        if second.find(family, agent, member.tokens) is not None:
            back += 1
            assert_restores(second, family, agent, member.kv, SMALL)
    assert back == 3 or counts.failed_saves > 0
    second.check()


def test_the_budget_holds_when_nothing_can_be_spilled() -> None:
    store = open_store(Failing(0), budget=CHUNK + HEADER_BYTES + 220 * SMALL.row_bytes)
    for i in range(4):
        fill(store, f"s{i}", seed=i)
        store.check()
    report = store.report()
    assert report.used <= report.budget
    assert report.tier is not None
    assert report.tier.failed_saves > 0


def test_a_member_that_does_not_fit_is_not_read_and_nobody_is_evicted_for_it() -> None:
    tier = MemoryTier(1 << 26)
    first = open_store(tier)
    members = fill(first)
    first.flush(first.keys.family("t", "s"))
    small = open_store(tier, budget=CHUNK + HEADER_BYTES + 60 * SMALL.row_bytes)
    family = small.keys.family("t", "s")
    assert small.find(family, "a0", members["a0"].tokens) is None
    report = small.report()
    assert report.tier is not None
    assert report.tier.no_room == 1
    assert report.used == 0


def test_a_master_comes_back_and_its_recapture_stores_nothing_twice() -> None:
    tier = MemoryTier(1 << 26)
    first = open_store(tier)
    members = fill(first)
    family = first.keys.family("t", "s")
    first.flush(family)
    second = open_store(tier)
    assert_all_back(second, members)
    master = second.master(family)
    assert master is not None
    used = second.report().used
    assert len(master) == 80
    again = torch.cat([segment.rows.kv for segment in master.segments], dim=2)
    assert second.put_master(family, 5, master.tokens, reader(again), cuts=(30,)) == 80
    assert second.report().used == used
    second.check()


@pytest.mark.parametrize("scope", list(Scope))
def test_scopes_do_not_change_who_may_find_a_mirror(scope: Scope) -> None:
    tier = MemoryTier(1 << 26)
    store = open_store(tier, keys(scope=scope))
    members = fill(store)
    store.flush(store.keys.family("t", "s"))
    for salt, session in (("other", "s"), ("t", "other"), ("", "s")):
        stranger = store.keys.family(salt, session)
        assert all(store.find(stranger, agent, m.tokens) is None for agent, m in members.items())
