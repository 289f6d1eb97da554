"""What storage takes, against the targets: stored bytes near own bytes, ratios near what the traffic allows."""

from __future__ import annotations

import numpy as np
import pytest
from storage_samples import (
    SMALL,
    assert_restores,
    keys,
    make_member,
    random_rows,
    random_tokens,
    reader,
)
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.store import Store

GQA = Layout(layers=6, heads=3, dim=64, dtype="bfloat16")


def test_ten_members_with_eight_percent_of_their_own_take_less_than_a_fifth_and_half() -> None:
    rng = np.random.default_rng(0)
    shared, history, corrected = 920, 48, 32
    master, master_kv = random_tokens(rng, shared + 64), random_rows(GQA, shared + 64, 0)
    store = Store(keys(GQA), 1 << 30)
    family = store.keys.family("", "s")
    store.put_master(family, 1, master[:shared], reader(master_kv))
    own = np.arange(shared + history) < history
    for block in range(4):  # the first rows of each of four blocks are computed anyway
        at = history + block * (shared // 4)
        own[at : at + corrected // 4] = True
    members = {}
    for i in range(10):
        member = members[f"a{i}"] = make_member(GQA, master, master_kv, history, own, 10 + i)
        store.put_mirror(family, f"a{i}", member.tokens, member.taken(), reader(member.kv))
    for agent, member in members.items():
        assert_restores(store, family, agent, member.kv, GQA)
    store.check()

    report = store.report().families[family]
    assert report.own_share == pytest.approx(0.0826, abs=1e-3)
    assert report.dense_bytes == sum(len(m.tokens) * (GQA.row_bytes + 4) for m in members.values())
    assert report.stored_bytes == store.report().used
    assert report.ratio >= 5.5
    assert report.ratio >= 0.95 * report.bound
    assert report.overhead <= 1.05
    mirror = report.mirrors["a3"]
    assert mirror.own == history + corrected
    assert mirror.ratio >= 11.2
    # Three blocks of history; heads of 8 rows at 48, 278, 508 and 738, of which that at 508 straddles two blocks.
    assert mirror.changed == 3 + 1 + 1 + 2 + 1
    assert mirror.per_block == (0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3)
    assert sum(n * count for n, count in enumerate(mirror.per_block, 1)) == mirror.own
    assert sum(mirror.per_block) == mirror.changed <= mirror.blocks


def test_five_hundred_rounds_of_new_text_keep_memory_and_hits_flat() -> None:
    rng = np.random.default_rng(1)
    layout = Layout(layers=1, heads=1, dim=16, dtype="float32")
    store = Store(keys(layout), 500 * layout.row_bytes)
    used, hits = [], []
    last: dict[str, np.ndarray] = {}
    for number in range(500):
        family = store.keys.family("", f"session {number // 10}")
        if number % 10 == 0:
            last = {}
        store.pin(family)
        hits.append(sum(store.find(family, agent, tokens) is not None for agent, tokens in last.items()))
        master = random_tokens(rng, 80)
        store.put_master(family, number, master, reader(random_rows(layout, 80, number)))
        for agent in "abcd":
            last[agent] = np.concatenate([random_tokens(rng, 16), master])
            kv = reader(random_rows(layout, 96, number))
            assert store.put_mirror(family, agent, last[agent], Taken(number, np.array([[0, 16, 80]])), kv)
        store.unpin(family)
        used.append(store.report().used)
    store.check()
    assert max(used) <= 500 * layout.row_bytes
    assert store.report().counts.evicted > 40
    assert np.mean(used[450:]) == pytest.approx(np.mean(used[50:100]), rel=0.1)
    assert np.mean(hits[450:]) == np.mean(hits[50:100]) == 0.9 * 4


def test_a_budget_too_small_for_all_sessions_keeps_the_newest_and_holds_exactly() -> None:
    rng = np.random.default_rng(2)
    one = 100 * (SMALL.row_bytes + 4) + 100 * 4  # a segment with its ids, and the ids of all rows
    store = Store(keys(), 3 * one)
    families = [store.keys.family("", f"s{i}") for i in range(8)]
    for i, family in enumerate(families):
        tokens, kv = random_tokens(rng, 100), random_rows(SMALL, 100, i)
        assert store.put_master(family, i, tokens, reader(kv)) == 100
        store.check()
    live = store.report().families
    assert list(live) == families[-3:]
    assert store.report().used == 3 * one
    assert store.report().counts.evicted == 5
