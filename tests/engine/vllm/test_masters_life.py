"""Masters through random lives: no page is lost, shared or held beyond the budget, whatever happens in which order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("vllm")

from master_pools import PAGE, PAGES, Setup, longer, transcript
from tokendance_engine.adapters.vllm.family import FamilyKey, Master


class Life(RuleBasedStateMachine):
    """Random rounds, plain requests, aborts and resets; accounts are settled after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.setup = Setup(share=0.5)
        self.pins: list[Master] = []
        self.plain: list[object] = []

    sessions = st.sampled_from("abcd").map(lambda name: ("", name))

    @rule(key=sessions, rows=st.integers(3, 12 * PAGE), extends=st.booleans(), users=st.integers(0, 3))
    def round(self, key: FamilyKey, rows: int, extends: bool, users: int) -> None:
        families = self.setup.families
        family = families.get_or_make(key)
        old = family.master
        wanted = longer(old.transcript, rows % 40 + 1) if extends and old else transcript(rows)
        master = families.grow(family, wanted, extends)
        if master is None:
            return
        assert master.transcript is wanted
        assert (master is old) == (extends and old is not None)
        master.users += users
        self.pins += [master] * users

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def member_ends(self, data: st.DataObject) -> None:
        self.setup.families.release(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @rule(key=sessions)
    def master_breaks(self, key: FamilyKey) -> None:
        family = self.setup.families.get(key)
        if family is not None:
            self.setup.families.retire(family)

    @rule(pages=st.integers(1, 8))
    def plain_request(self, pages: int) -> None:
        self.setup.families.give_way(pages)
        if self.setup.free >= pages:
            self.plain += self.setup.pool.get_new_blocks(pages)
        else:
            idle = [r for r in self.setup.families.snapshot() if r["pages"]]
            assert len(idle) <= len({m.id for m in self.pins}), (
                "a plain request starved beside an idle master"
            )

    @rule()
    def plain_requests_end(self) -> None:
        self.setup.pool.free_blocks(self.plain)
        self.plain = []

    @rule()
    def reset(self) -> None:
        done = self.setup.families.clear()
        if not self.pins:
            assert done

    @invariant()
    def accounts_agree(self) -> None:
        families = self.setup.families
        families.check()
        current = {f.master.id: f.master for f in families._families.values() if f.master}
        masters = current | {m.id: m for m in self.pins}
        held = [b.block_id for m in masters.values() for b in m.blocks]
        assert len(set(held)) == len(held), "two masters share a page"
        assert families._held == len(held) <= int(0.5 * PAGES)
        assert self.setup.free == self.setup.start - len(held) - len(self.plain)
        assert all(len(m.blocks) * PAGE >= m.transcript.rows for m in masters.values())

    def teardown(self) -> None:
        self.plain_requests_end()
        for master in self.pins:
            self.setup.families.release(master)
        assert self.setup.families.clear()
        assert self.setup.free == self.setup.start
        assert all(b.ref_cnt == 0 for b in self.setup.pool.blocks if not b.is_null)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
