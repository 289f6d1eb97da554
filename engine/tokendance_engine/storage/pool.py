"""All families within an exact byte budget: least recently used sessions give way, running ones are pinned."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.family import Family, Index
from tokendance_engine.storage.keys import FamilyKey
from tokendance_engine.storage.ledger import Ledger, Sized
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.rows import Rows, Segment

BeforeEviction = Callable[[FamilyKey, Family], None]
"""Called with a family that is about to leave memory; its bytes are freed when this returns."""


@dataclass(slots=True)
class PoolCounts:
    """How often things happened."""

    evicted: int = 0
    expired: int = 0
    refused: int = 0


class Pool:
    """Families, least recently used first.

    Args:
        budget: most bytes that may be held; never exceeded, not even for a moment (`make_room` comes first).
        before_eviction: spills a family.
        clock: seconds, for expiry.
    """

    def __init__(
        self,
        budget: int,
        before_eviction: BeforeEviction | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget < 0:
            raise ShapeError(f"budget of {budget} bytes; must be 0 or more")
        self.budget = budget
        self.counts = PoolCounts()
        self._before_eviction = before_eviction
        self._clock = clock
        self._families: OrderedDict[FamilyKey, Family] = OrderedDict()
        self._ledger = Ledger()
        self._segments: dict[bytes, Segment] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def used(self) -> int:
        """Bytes held, indexes and token ids included."""
        return self._ledger.used

    @property
    def families(self) -> dict[FamilyKey, Family]:
        """Live families, least recently used first; read only."""
        return dict(self._families)

    def get(self, key: FamilyKey) -> Family | None:
        """A family, now the most recently used."""
        family = self._families.get(key)
        if family is not None:
            self._families.move_to_end(key)
            family.touched = self._clock()
        return family

    def get_or_make(self, key: FamilyKey) -> Family:
        """A family, made if there is none."""
        if key not in self._families:
            self._families[key] = Family()
        family = self.get(key)
        assert family is not None
        return family

    def pin(self, key: FamilyKey) -> None:
        """Keep a family while a round runs; pins nest."""
        self.get_or_make(key).pins += 1

    def unpin(self, key: FamilyKey) -> None:
        """Undo one `pin`. A family released meanwhile is not an error."""
        family = self._families.get(key)
        if family is not None and family.pins:
            family.pins -= 1
            self._forget_empty(key)

    def segment(self, key: bytes) -> Segment | None:
        """The newest held segment under a key (`keys.segment_key`)."""
        return self._segments.get(key)

    def make_room(self, nbytes: int, keep: FamilyKey) -> bool:
        """Make `nbytes` fit, evicting idle families other than `keep`.

        Returns:
            False, with nothing evicted, if even that would not be enough.
        """
        idle = [key for key, family in self._families.items() if key != keep and not family.pins]
        if nbytes > self.budget - self.used and nbytes > self.budget - self._least(idle):
            self.counts.refused += 1
            return False
        for key in idle:
            if self.used + nbytes <= self.budget:
                break
            self.evict(key)
        return True

    def evict(self, key: FamilyKey) -> None:
        """Spill a family and forget it here."""
        if self._before_eviction is not None:
            self._before_eviction(key, self._families[key])
        self.counts.evicted += 1
        self._drop(key)

    def release(self, key: FamilyKey) -> bool:
        """Forget a family, pinned or not, without spilling it; False if there is none."""
        if key not in self._families:
            return False
        self._drop(key)
        return True

    def expire(self, idle_seconds: float) -> list[FamilyKey]:
        """Evict families that nobody used for this long."""
        limit = self._clock() - idle_seconds
        old = [key for key, family in self._families.items() if not family.pins and family.touched <= limit]
        for key in old:
            self.evict(key)
        self.counts.expired += len(old)
        return old

    def set_master(self, key: FamilyKey, master: Master, keys: list[bytes]) -> None:
        """Replace a family's master.

        Args:
            keys: the key of each of its segments, under which other families find them.
        """
        family = self.get_or_make(key)
        old, old_index = family.master, family.master_index
        family.master, family.master_index = master, Index(master.tokens.nbytes)
        self._ledger.hold(family.of_master(master, family.master_index))
        for segment_key, segment in zip(keys, master.segments, strict=True):
            self._key_of[id(segment)] = segment_key
            self._segments[segment_key] = segment
        if old is not None and old_index is not None:
            self._let_go(family.of_master(old, old_index))
        self._within()

    def set_mirror(self, key: FamilyKey, agent: str, mirror: Mirror) -> None:
        """Replace a member's mirror."""
        family = self.get_or_make(key)
        old, old_index = family.mirrors.pop(agent, None), family.indexes.pop(agent, None)
        family.mirrors[agent], family.indexes[agent] = mirror, Index(mirror.index_bytes)
        self._ledger.hold(family.of_mirror(mirror, family.indexes[agent]))
        if old is not None and old_index is not None:
            self._let_go(family.of_mirror(old, old_index))
        self._within()

    def drop_mirror(self, key: FamilyKey, agent: str) -> None:
        """Forget one member's mirror, if there is one."""
        family = self._families.get(key)
        if family is None or agent not in family.mirrors:
            return
        self._let_go(family.of_mirror(family.mirrors.pop(agent), family.indexes.pop(agent)))
        self._forget_empty(key)

    def check(self) -> None:
        """Raise AssertionError unless bytes, references and the segment index agree (tests call this often)."""
        self._ledger.check()
        assert self.used <= self.budget, f"{self.used} bytes held; the budget is {self.budget}"
        holds: dict[int, int] = {}
        for family in self._families.values():
            family.check()
            for thing in family.holdings():
                holds[id(thing)] = holds.get(id(thing), 0) + 1
        assert holds == {id(thing): self._ledger.count(thing) for thing in self._ledger.things()}
        for segment_key, segment in self._segments.items():
            assert segment in self._ledger, "the index names a segment that nobody holds"
            assert self._key_of[id(segment)] == segment_key
        for thing in self._ledger.things():
            rows = thing.rows if isinstance(thing, Segment) else thing
            if isinstance(rows, Rows):
                assert rows.kv.untyped_storage().nbytes() == rows.kv.nbytes, "a view keeps other bytes alive"

    def _drop(self, key: FamilyKey) -> None:
        self._let_go(self._families.pop(key).holdings())

    def _let_go(self, things: Iterable[Sized]) -> None:
        for thing in self._ledger.drop(things):
            segment_key = self._key_of.pop(id(thing), None)
            if segment_key is not None and self._segments.get(segment_key) is thing:
                del self._segments[segment_key]

    def _forget_empty(self, key: FamilyKey) -> None:
        family = self._families[key]
        if family.master is None and not family.mirrors and not family.pins:
            del self._families[key]

    def _least(self, idle: list[FamilyKey]) -> int:
        """Bytes that would still be held without these families."""
        keep = {
            id(thing): thing.nbytes
            for key, family in self._families.items()
            if key not in set(idle)
            for thing in family.holdings()
        }
        return sum(keep.values())

    def _within(self) -> None:
        if self.used > self.budget:
            raise ShapeError(
                f"{self.used} bytes held; the budget is {self.budget}: make_room must come first"
            )
