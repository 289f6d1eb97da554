"""Masters in vLLM's own pages: who has one, how it grows, and when it gives way."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tokendance_engine.adapters.vllm.family import Family, FamilyKey, Master
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.segments.transcript import Transcript

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock


class Families:
    """All live families, least recently used first, within a share of vLLM's pages.

    Args:
        page_size: tokens per page.
        share: largest share of the pool that masters may hold.
        limit: most families remembered; the oldest idle one goes first.
    """

    def __init__(self, page_size: int, share: float, limit: int = 4096) -> None:
        self._page_size = page_size
        self._share = share
        self._limit = limit
        self._pool: PagePool | None = None
        self._families: OrderedDict[FamilyKey, Family] = OrderedDict()
        self._ids = itertools.count(1)
        self._held = 0
        self._all: list[Master] = []
        self.changed = True

    def bind(self, pool: PagePool) -> None:
        """Use vLLM's page pool."""
        self._pool = pool

    @property
    def pool(self) -> PagePool:
        """The pool that masters live in."""
        assert self._pool is not None, "vLLM has not bound its block pool"
        return self._pool

    @property
    def pages(self) -> int:
        """All pages of the pool."""
        return self.pool.size

    def get(self, key: FamilyKey) -> Family | None:
        """A family, now the most recently used."""
        family = self._families.get(key)
        if family is not None:
            self._families.move_to_end(key)
        return family

    def get_or_make(self, key: FamilyKey) -> Family:
        """A family, made if it does not exist."""
        family = self.get(key)
        if family is None:
            family = self._families[key] = Family()
            for old in list(self._families):
                if len(self._families) <= self._limit:
                    break
                if old != key and not self._in_use(self._families[old]):
                    self.drop(old)
        return family

    def grow(self, family: Family, transcript: Transcript, extends: bool) -> Master | None:
        """Give a family's master room for a transcript.

        Args:
            transcript: replaces the master's; when `extends`, it begins with the master's own rows.

        Returns:
            The master, or None (nothing changed) if there are not enough pages.
        """
        master = family.master if extends else None
        have = len(master.blocks) if master else 0
        need = -(-transcript.rows // self._page_size) - have
        blocks = self._take(need, family if extends else None)
        if blocks is None:
            return None
        if master is None:
            self.retire(family)
            master = family.master = Master(next(self._ids), transcript)
            family.lost = None
            self._all.append(master)
        master.transcript = transcript
        master.blocks.extend(blocks)
        self.changed = True
        return master

    def revive(self, family: Family) -> Master | None:
        """Give a master that had to give way pages again, for all its rows; None if there are not enough.

        It is the same computation, so it keeps its id; its rows must be written before anything reads them.
        """
        lost = family.lost
        if lost is None or family.master is not None:
            return None
        blocks = self._take(-(-lost.transcript.rows // self._page_size), None)
        if blocks is None:
            return None
        family.lost = None
        family.master = master = Master(lost.id, lost.transcript, blocks, sent=lost.transcript.rows)
        self._all.append(master)
        self.changed = True
        return master

    def release(self, master: Master) -> None:
        """A member is done with a master."""
        master.users -= 1
        if master.retired and master.users == 0:
            self._free(master)

    def retire(self, family: Family) -> None:
        """Take a family's master away; its pages go when its last user is done."""
        master, family.master = family.master, None
        if master is None:
            return
        master.retired = True
        self.changed = True
        if master.users == 0:
            self._free(master)

    def drop(self, key: FamilyKey) -> None:
        """Forget a family."""
        self.retire(self._families.pop(key))

    def release_family(self, key: FamilyKey) -> None:
        """Forget a family that its client has released; pages of masters go when their last users are done."""
        for each in [k for k in self._families if k[:2] == key[:2]]:
            self.drop(each)

    def give_way(self, pages: int) -> None:
        """Free idle masters, least recently used first, until the pool has this many free pages."""
        pool = self.pool
        if pool.free >= pages:
            return
        for family in self._idle():
            self._put_aside(family)
            if pool.free >= pages:
                return

    def make_room(self, pages: int, keys: Sequence[BlockHash]) -> None:
        """Give way to a request of this many pages, of which vLLM has the first ones, with these keys, in its cache.

        Cached pages that nobody uses count as free until the request takes them, so only those in use are deducted.
        """
        pool = self.pool
        if pool.free < pages:
            self.give_way(pages - sum(block.ref_cnt > 0 for block in pool.lookup(keys)))

    def masters(self) -> list[Master]:
        """All masters that hold pages, retired ones in use included."""
        return [m for m in self._all if m.blocks]

    def find(self, master_id: int) -> Family | None:
        """The family whose current master has this id."""
        return next((f for f in self._families.values() if f.master and f.master.id == master_id), None)

    def clear(self) -> bool:
        """Forget every idle family; False if some are in use."""
        for key in list(self._families):
            if not self._in_use(self._families[key]):
                self.drop(key)
        return not self._families

    def snapshot(self) -> list[dict[str, Any]]:
        """Live families for the status route; tenants are not named."""
        return [
            {
                "session_id": key[1],
                "salted": bool(key[0]),
                "source": key[2] if len(key) > 2 else "master",
                "agents": len(f.chains),
                "segments": f.master.transcript.counts().total() if f.master else 0,
                "rows": f.master.transcript.rows if f.master else 0,
                "pages": len(f.master.blocks) if f.master else 0,
            }
            for key, f in self._families.items()
        ]

    def check(self) -> None:
        """Raise AssertionError unless page counts and references agree."""
        live = [f.master for f in self._families.values() if f.master]
        assert sum(len(m.blocks) for m in self._all) == self._held
        assert all(m in self._all for m in live)
        for master in live:
            assert not master.retired
            assert master.users >= 0
            assert len(master.blocks) * self._page_size >= master.transcript.rows
            assert all(b.ref_cnt > 0 for b in master.blocks)
            master.transcript.check()

    def _take(self, need: int, keep: Family | None) -> list[KVCacheBlock] | None:
        """Pages from the pool, if need be after retiring idle masters other than `keep`'s; None if both fall short."""
        if need <= 0:
            return []
        pool = self.pool
        allowed = int(self._share * pool.size)
        idle = [f for f in self._idle() if f is not keep]
        spare = sum(len(f.master.blocks) for f in idle if f.master)
        if self._held - spare + need > allowed or pool.free + spare < need:
            return None
        for other in idle:
            if self._held + need <= allowed and pool.free >= need:
                break
            self._put_aside(other)
        self._held += need
        return pool.take(need)

    def _put_aside(self, family: Family) -> None:
        master = family.master
        self.retire(family)
        family.lost = master if master is not None and not master.pending else None

    def _free(self, master: Master) -> None:
        self._held -= len(master.blocks)
        self.pool.let_go(master.blocks)
        self._all.remove(master)
        master.blocks = []

    def _idle(self) -> Iterator[Family]:
        return (f for f in list(self._families.values()) if f.master and not self._in_use(f))

    def _in_use(self, family: Family) -> bool:
        return family.master is not None and family.master.users > 0
