"""The pool's budget, references, pins and order, under any sequence of calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from storage_samples import assert_restores, keys, make_member, random_rows, random_tokens, reader
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.pool import Pool
from tokendance_engine.storage.spill import Spill
from tokendance_engine.storage.store import Store
from tokendance_engine.storage.tiers import MemoryTier

TINY = Layout(layers=1, heads=1, dim=16, dtype="float32")
SESSIONS = st.integers(0, 3)
AGENTS = st.sampled_from(["a", "b", "c"])


class Storage(RuleBasedStateMachine):
    """Random rounds over four sessions; whatever happens, what can be restored is right."""

    @initialize(budget=st.integers(0, 120_000), tiered=st.booleans(), capacity=st.integers(0, 200_000))
    def start(self, budget: int, tiered: bool, capacity: int) -> None:
        self.now = 0.0
        made = keys(TINY)
        spill = Spill(made, MemoryTier(capacity), chunk_bytes=1024) if tiered else None
        self.store = Store(made, budget, idle_seconds=50, spill=spill, clock=lambda: self.now)
        self.budget = budget
        self.tier_holds = tiered
        self.seed = 0
        self.masters: dict[int, tuple] = {}
        self.members: dict[tuple[int, str], object] = {}
        self.pins = [0] * 4

    def family(self, session: int) -> object:
        return self.store.keys.family("t", f"s{session}")

    @rule(session=SESSIONS, rows=st.integers(1, 200))
    def master(self, session: int, rows: int) -> None:
        self.seed += 1
        tokens = random_tokens(np.random.default_rng(self.seed), rows)
        kv = random_rows(TINY, rows, self.seed)
        held = self.store.put_master(self.family(session), self.seed, tokens, reader(kv))
        assert held in (0, rows)
        self.masters[session] = (self.seed, tokens, kv)

    @rule(session=SESSIONS, agent=AGENTS, history=st.integers(0, 40), share=st.floats(0, 1))
    def mirror(self, session: int, agent: str, history: int, share: float) -> None:
        if session not in self.masters:
            return
        self.seed += 1
        number, tokens, kv = self.masters[session]
        size = history + len(tokens)
        own = (np.arange(size) < history) | (np.random.default_rng(self.seed).random(size) < share)
        member = make_member(TINY, tokens, kv, history, own, self.seed)
        got = self.store.put_mirror(
            self.family(session), agent, member.tokens, member.taken(number), reader(member.kv)
        )
        self.members[session, agent] = member
        assert got is None or got.tokens == size

    @rule(session=SESSIONS, agent=AGENTS)
    def restore(self, session: int, agent: str) -> None:
        member = self.members.get((session, agent))
        if member is None:
            return
        found = self.store.find(self.family(session), agent, member.tokens)
        if found is not None and found.tokens == len(member.tokens):
            assert_restores(self.store, self.family(session), agent, member.kv, TINY)

    @rule(session=SESSIONS)
    def pin(self, session: int) -> None:
        self.store.pin(self.family(session))
        self.pins[session] += 1

    @rule(session=SESSIONS)
    def unpin(self, session: int) -> None:
        if self.pins[session]:
            self.pins[session] -= 1
            self.store.unpin(self.family(session))

    @rule(session=SESSIONS)
    def release(self, session: int) -> None:
        self.store.release(self.family(session))
        self.pins[session] = 0
        for agent in "abc":
            self.members.pop((session, agent), None)
        assert self.store.find(self.family(session), "a", np.zeros(4, dtype=np.int32)) is None

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.store.expire()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "store"):
            self.store.check()
            assert self.store.report().used <= self.budget


Storage.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_any_sequence_of_calls_keeps_the_budget_and_restores_only_right_rows = Storage.TestCase


def filled(sessions: int, budget_of: float = 100.0) -> tuple[Store, list]:
    store = Store(keys(TINY), int(budget_of * 50 * (TINY.row_bytes + 8)))
    families = [store.keys.family("", f"s{i}") for i in range(sessions)]
    for i, family in enumerate(families):
        tokens = random_tokens(np.random.default_rng(i), 50)
        store.put_master(family, i, tokens, reader(random_rows(TINY, 50, i)))
    return store, families


def test_a_pinned_family_outlives_an_older_one_and_a_full_pool_of_pins_refuses() -> None:
    store, families = filled(2, budget_of=2)
    store.pin(families[0])
    third = store.keys.family("", "third")
    tokens, kv = random_tokens(np.random.default_rng(9), 50), random_rows(TINY, 50, 9)
    assert store.put_master(third, 9, tokens, reader(kv)) == 50
    assert set(store.report().families) == {families[0], third}
    store.pin(third)
    assert store.put_master(families[1], 9, tokens, reader(kv)) == 0
    assert store.report().counts.refused == 1
    assert {families[0], third} <= set(store.report().families)
    store.check()


def test_using_a_family_makes_it_the_last_to_go() -> None:
    store, families = filled(3, budget_of=3)
    store.find(families[0], "nobody", np.zeros(3, dtype=np.int32))
    tokens, kv = random_tokens(np.random.default_rng(9), 50), random_rows(TINY, 50, 9)
    store.put_master(store.keys.family("", "new"), 9, tokens, reader(kv))
    assert families[0] in store.report().families
    assert families[1] not in store.report().families


def test_idle_families_expire_and_pinned_ones_do_not() -> None:
    now = [0.0]
    store = Store(keys(TINY), 1 << 20, idle_seconds=10, clock=lambda: now[0])
    old, running = store.keys.family("", "old"), store.keys.family("", "running")
    for i, family in enumerate((old, running)):
        tokens = random_tokens(np.random.default_rng(i), 50)
        store.put_master(family, i, tokens, reader(random_rows(TINY, 50, i)))
    store.pin(running)
    now[0] = 10.5
    assert store.expire() == 1
    assert list(store.report().families) == [running]


def test_releasing_a_family_twice_says_so() -> None:
    store, families = filled(1)
    assert store.release(families[0])
    assert not store.release(families[0])
    assert store.report().used == 0


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ShapeError, match="-1 bytes"):
        Pool(-1)
