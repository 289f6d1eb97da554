"""Mirrors restore the very bytes that the pages held, and write only what is new."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_samples import (
    SMALL,
    Member,
    assert_restores,
    keys,
    make_member,
    random_rows,
    random_tokens,
    reader,
    remake,
)
from tokendance_engine.storage.blocks import runs
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.restore import materialise
from tokendance_engine.storage.rows import bits
from tokendance_engine.storage.store import Store

GB = 1 << 30


def own_rows(size: int, history: int, share: float, seed: int) -> np.ndarray:
    """History, then that share of the rest."""
    own = np.arange(size) < history
    rest = np.random.default_rng(seed).permutation(np.arange(history, size))
    own[rest[: round(share * len(rest))]] = True
    return own


def store_with(layout: Layout, master: np.ndarray, master_kv: torch.Tensor, **options: object) -> tuple:
    store = Store(keys(layout), GB, **options)  # type: ignore[arg-type]
    family = store.keys.family("salt", "session")
    assert store.put_master(family, 1, master, reader(master_kv), cuts=(40, 41)) == len(master)
    return store, family


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([64, 80, 128, 256]),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.integers(0, 70),
    st.integers(30, 150),
    st.integers(0, 400),
    st.integers(0, 10_000),
)
def test_any_mirror_restores_bit_for_bit(
    share: float, heads: int, dim: int, dtype: str, history: int, shared: int, skip: int, seed: int
) -> None:
    layout = Layout(2, heads, dim, dtype)
    rng = np.random.default_rng(seed)
    master, master_kv = random_tokens(rng, shared), random_rows(layout, shared, seed)
    own = own_rows(history + shared, history, share, seed)
    member = make_member(layout, master, master_kv, history, own, seed + 1, skip)
    store, family = store_with(layout, master, master_kv)
    steps = np.arange(len(own)) + np.where(np.arange(len(own)) >= history, skip, 0)
    got = store.put_mirror(
        family, "a", member.tokens, member.taken(), reader(member.kv), positions=Positions.of(steps)
    )
    store.check()
    assert got is not None
    assert got.read == (own.sum() if own.mean() <= 0.96 else len(own))
    assert_restores(store, family, "a", member.kv, layout)


@pytest.mark.parametrize("where", [0, 1, 15, 16, 17, 62, 63, 79])
def test_one_changed_row_anywhere_is_stored_alone(where: int) -> None:
    rng = np.random.default_rng(0)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 0)
    own = np.arange(80) == where
    member = make_member(SMALL, master, master_kv, 0, own, 1)
    store, family = store_with(SMALL, master, master_kv)
    got = store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    assert got is not None
    assert (got.read, got.referenced) == (1, 79)
    assert_restores(store, family, "a", member.kv, SMALL)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 100), st.integers(0, 1000))
def test_any_range_of_a_mirror_restores(start: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, seed)
    member = make_member(SMALL, master, master_kv, 20, own_rows(100, 20, 0.3, seed), seed)
    store, family = store_with(SMALL, master, master_kv)
    store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    end = min(100, start + length)
    work = store.restore(family, "a", start, end)
    assert work is not None
    assert work.tokens == end - start
    key, value = materialise(work, 1, remake(SMALL))
    assert torch.equal(bits(key), bits(member.kv[0, 1, start:end]))
    assert torch.equal(bits(value), bits(member.kv[1, 1, start:end]))


def test_a_row_at_the_masters_own_place_keeps_its_bytes_without_a_rotation() -> None:
    rng = np.random.default_rng(0)
    master, master_kv = random_tokens(rng, 60), random_rows(SMALL, 60, 0)
    store, family = store_with(SMALL, master, master_kv)
    member = make_member(SMALL, master, master_kv, 0, np.arange(60) < 3, 1)
    store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    work = store.restore(family, "a", 0, 60)
    assert work is not None
    assert work.gathers
    assert not any(gather.rotates for gather in work.gathers)


def grow(member: Member, extra: int, seed: int) -> Member:
    """The member after another round that is all its own."""
    rng = np.random.default_rng(seed)
    tokens = np.concatenate([member.tokens, random_tokens(rng, extra)])
    kv = torch.cat([member.kv, random_rows(SMALL, extra, seed)], dim=2)
    return Member(tokens, kv, np.zeros((0, 3), dtype=np.int64))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=25), st.integers(0, 1000))
def test_each_round_reads_only_what_is_new(extras: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, seed)
    member = make_member(SMALL, master, master_kv, 20, own_rows(100, 20, 0.3, seed), seed)
    store, family = store_with(SMALL, master, master_kv)
    store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    for i, extra in enumerate(extras):
        same = len(member.tokens)
        member = grow(member, extra, seed + i + 1)
        asked: list[int] = []

        def read(layer: int, tokens: np.ndarray, kv: torch.Tensor = member.kv, asked: list = asked) -> tuple:
            asked.extend(tokens.tolist())
            return kv[0, layer, tokens], kv[1, layer, tokens]

        got = store.put_mirror(family, "a", member.tokens, member.taken(), read, same=same)
        store.check()
        assert got is not None
        assert got.read == extra
        assert sorted(set(asked)) == list(range(same, same + extra))
    assert_restores(store, family, "a", member.kv, SMALL)


def test_a_history_that_leaves_the_old_one_is_cut_there_and_nothing_old_stays_alive() -> None:
    rng = np.random.default_rng(3)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 3)
    store, family = store_with(SMALL, master, master_kv)
    member = make_member(SMALL, master, master_kv, 20, own_rows(100, 20, 0.3, 3), 3)
    store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    other = grow(Member(member.tokens[:50], member.kv[:, :, :50], member.spans), 30, 9)
    got = store.put_mirror(family, "a", other.tokens, other.taken(), reader(other.kv), same=100)
    store.check()
    assert got is not None
    assert got.read == 30
    assert_restores(store, family, "a", other.kv, SMALL)


def test_references_to_several_masters_survive_the_masters_replacement() -> None:
    rng = np.random.default_rng(4)
    first, first_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 4)
    store, family = store_with(SMALL, first, first_kv)
    member = make_member(SMALL, first, first_kv, 20, own_rows(100, 20, 0.1, 4), 4)
    store.put_mirror(family, "a", member.tokens, member.taken(1), reader(member.kv))

    second, second_kv = random_tokens(rng, 60), random_rows(SMALL, 60, 5)
    store.put_master(family, 2, second, reader(second_kv))
    later = make_member(SMALL, second, second_kv, 100, np.arange(160) < 100, 6)
    later.tokens[:100], later.kv[:, :, :100] = member.tokens, member.kv
    got = store.put_mirror(family, "a", later.tokens, later.taken(2), reader(later.kv), same=100)
    store.check()
    assert got is not None
    assert got.read == 0
    assert_restores(store, family, "a", later.kv, SMALL)


def test_rows_of_another_master_than_the_one_held_are_stored_and_not_referenced() -> None:
    rng = np.random.default_rng(5)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 5)
    store, family = store_with(SMALL, master, master_kv)
    recomputed = random_rows(SMALL, 80, 6)
    member = make_member(SMALL, master, recomputed, 20, np.arange(100) < 20, 7)
    got = store.put_mirror(family, "a", member.tokens, Taken(2, member.spans), reader(member.kv))
    assert got is not None
    assert got.referenced == 0
    assert_restores(store, family, "a", member.kv, SMALL)


def test_with_a_check_a_wrong_plan_costs_bytes_and_never_a_wrong_row() -> None:
    rng = np.random.default_rng(6)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 6)
    store, family = store_with(SMALL, master, master_kv, remake=remake(SMALL))
    member = make_member(SMALL, master, master_kv, 20, np.arange(100) < 20, 7)
    member.kv[0, 1, 50, 0, 3] += 1  # one number of one layer: recomputed after all
    member.kv[1, 0, 70, 1, 5] = -member.kv[1, 0, 70, 1, 5]
    got = store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    assert got is not None
    assert got.read == 22
    assert_restores(store, family, "a", member.kv, SMALL)


def test_without_a_plan_restored_rows_are_found_by_content_in_another_order() -> None:
    rng = np.random.default_rng(7)
    master, master_kv = random_tokens(rng, 96), random_rows(SMALL, 96, 7)
    store, family = store_with(SMALL, master, master_kv, remake=remake(SMALL))
    order = np.concatenate([np.arange(60, 90), np.arange(10, 50)])
    tokens = np.concatenate([random_tokens(rng, 33), master[order], random_tokens(rng, 9)])
    kv = random_rows(SMALL, len(tokens), 8)
    again = remake(SMALL)
    for layer in range(SMALL.layers):
        kv[0, layer, 33:103] = again(layer, master_kv[0, layer, order], order, np.arange(33, 103))
        kv[1, layer, 33:103] = master_kv[1, layer, order]
    got = store.put_mirror(family, "a", tokens, None, reader(kv))
    assert got is not None
    assert (got.read, got.referenced) == (42, 70)
    assert_restores(store, family, "a", kv, SMALL)


def test_a_mirror_that_is_nearly_all_its_own_is_stored_whole() -> None:
    rng = np.random.default_rng(8)
    master, master_kv = random_tokens(rng, 100), random_rows(SMALL, 100, 8)
    own = ~((np.arange(200) >= 100) & (np.arange(200) < 106))
    member = make_member(SMALL, master, master_kv, 100, own, 9)
    assert len(runs(~own)) == 1
    for above, stored in ((0.96, 200), (0.98, 194)):
        store, family = store_with(SMALL, master, master_kv, dense_above=above)
        got = store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
        assert got is not None
        assert got.read == stored
        assert_restores(store, family, "a", member.kv, SMALL)


def test_a_common_start_is_stored_once_for_all_members_whose_bytes_are_the_same() -> None:
    rng = np.random.default_rng(9)
    master, master_kv = random_tokens(rng, 100), random_rows(SMALL, 100, 9)
    store, family = store_with(SMALL, master, master_kv)
    start, start_kv = random_tokens(rng, 70), random_rows(SMALL, 70, 10)
    members = {}
    for i in range(4):
        member = members[f"a{i}"] = make_member(SMALL, master, master_kv, 90, np.arange(190) < 90, 20 + i)
        member.tokens[:70], member.kv[:, :, :70] = start, start_kv
    members["a3"].kv[0, 0, 5, 0, 0] += 1  # not the same pages after all
    before = store.report().used
    for agent, member in members.items():
        got = store.put_mirror(family, agent, member.tokens, member.taken(), reader(member.kv), common=70)
        assert got is not None
        assert (got.read, got.referenced) == (20, 170)
    store.check()
    for agent, member in members.items():
        assert_restores(store, family, agent, member.kv, SMALL)
    row = SMALL.row_bytes
    assert (2 * 70 + 4 * 20) * row < store.report().used - before < (2 * 70 + 4 * 20 + 5) * row

    store.put_mirror(family, "a0", members["a0"].tokens, None, reader(members["a0"].kv), same=190, common=70)
    assert_restores(store, family, "a0", members["a0"].kv, SMALL)


def test_tokens_that_moved_are_not_taken_for_the_same() -> None:
    rng = np.random.default_rng(10)
    master, master_kv = random_tokens(rng, 80), random_rows(SMALL, 80, 10)
    store, family = store_with(SMALL, master, master_kv)
    member = make_member(SMALL, master, master_kv, 20, np.arange(100) < 20, 11)
    store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    moved = make_member(SMALL, master, master_kv, 20, np.arange(100) < 20, 11, skip=64)
    steps = Positions(np.array([[0, 0], [20, 64]], dtype=np.int32))
    got = store.put_mirror(
        family, "a", moved.tokens, moved.taken(), reader(moved.kv), same=100, positions=steps
    )
    assert got is not None
    assert (got.read, got.referenced) == (0, 80)
    assert_restores(store, family, "a", moved.kv, SMALL)
    found = store.find(family, "a", moved.tokens)
    assert found is not None
    assert found.positions.at(np.array([19, 20])).tolist() == [19, 84]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1), st.integers(1, 99))
def test_master_rows_that_were_left_out_are_stored_with_the_members_instead(
    seed: int, share: float, grown: int
) -> None:
    rng = np.random.default_rng(seed)
    master, master_kv = random_tokens(rng, 100), random_rows(SMALL, 100, seed)
    keep = rng.random(100) < share
    store = Store(keys(), GB)
    family = store.keys.family("salt", "session")
    assert store.put_master(family, 1, master[:grown], reader(master_kv), keep=keep[:grown]) == grown
    assert store.put_master(family, 1, master, reader(master_kv), cuts=(50,), keep=keep) == 100
    held = store.master(family)
    assert held is not None
    assert held.stored == keep.sum()
    assert store.report().used == keep.sum() * (SMALL.row_bytes + 4) + 400
    member = make_member(SMALL, master, master_kv, 10, np.arange(110) < 10, seed)
    got = store.put_mirror(family, "a", member.tokens, member.taken(), reader(member.kv))
    store.check()
    assert got is not None
    assert got.referenced in (keep.sum(), 0)
    assert_restores(store, family, "a", member.kv, SMALL)
