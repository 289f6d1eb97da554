"""The way in: what an engine calls at the end of a request, before the next one, and when a round starts and ends.

All calls are made by one worker process; a lock makes them safe from several of its threads. No call raises for want
of memory or of a tier: what cannot be kept is not kept, and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Flags
from tokendance_engine.storage.capture import draft
from tokendance_engine.storage.handover import Found, Receipt, Taken
from tokendance_engine.storage.keys import FamilyKey, Keys, segment_key
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.master_growth import begins, grown, pieces, read_segment, same_segment
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.pool import Pool
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.report import StoreReport, family_report
from tokendance_engine.storage.restore import Remake, Work
from tokendance_engine.storage.rows import ReadRows, Segment
from tokendance_engine.storage.sources import common_start, content_of, starting_with
from tokendance_engine.storage.spill import Spill


class Store:
    """Masters and mirrors of one worker.

    Args:
        keys: model, scope and salt secret.
        budget: most bytes in memory, the tier's staging buffer included.
        idle_seconds: families unused for this long are evicted by `expire`.
        dense_above: share of stored new tokens above which a capture stores all of them.
        remake: the engine's re-making of keys; given, every reference is checked against the pages' bytes before it
            is trusted (and captures without a plan become possible).
        spill: where evicted families go; None: nowhere.
        clock: seconds.
    """

    def __init__(
        self,
        keys: Keys,
        budget: int,
        *,
        idle_seconds: float = 3600.0,
        dense_above: float = 0.96,
        remake: Remake | None = None,
        spill: Spill | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = keys
        self._layout = keys.model.layout
        self._idle_seconds = idle_seconds
        self._dense_above = dense_above
        self._remake = remake
        self._spill = spill
        staging = spill.staging_bytes if spill is not None else 0
        self._pool = Pool(max(0, budget - staging), spill.save if spill is not None else None, clock)
        self._lock = threading.RLock()

    def pin(self, family: FamilyKey) -> None:
        """A round of this family starts: it is not evicted before as many `unpin`s."""
        with self._lock:
            self._pool.pin(family)

    def unpin(self, family: FamilyKey) -> None:
        """A round of this family ended."""
        with self._lock:
            self._pool.unpin(family)

    def put_master(
        self,
        family: FamilyKey,
        master_id: int,
        tokens: Tokens,
        read: ReadRows,
        positions: Positions | None = None,
        cuts: Sequence[int] = (),
        keep: Flags | None = None,
    ) -> int:
        """Capture what is new of a master, from its pages.

        Args:
            master_id: the engine's name for this computation. Rows captured under the same id are not read again;
                another id is other bytes, and starts anew.
            tokens: ids of all rows, int32 [rows].
            read: reads master rows by number.
            positions: where the rows stand; default: row = position.
            cuts: rows at which to start another segment (where other sessions may share the text before).

            keep: new rows to store, bool [rows]; default: all. What nobody references is needed only to bring the
                master itself back into pages, where it can be computed again.

        Returns:
            Rows the store knows now: all, or (no room) fewer.
        """
        positions = positions or Positions.plain()
        with self._lock:
            held = self._pool.get_or_make(family).master
            if held is None or held.id != master_id or not begins(tokens, held):
                held = Master.empty(master_id)
            scope = self.keys.scope_id(family)

            def make(before: Master, new: Tokens) -> Segment:
                made = read_segment(self._layout, before, new, positions, read)
                other = self._pool.segment(segment_key(scope, made.context, made.first, made.tokens))
                # Another session's, or an earlier computation's, if it is the same to the last bit.
                return other if other is not None and same_segment(other, made) else made

            def fits(rows: int) -> bool:
                nbytes = 4 * len(tokens) + rows * (self._layout.row_bytes + 4)
                return self._pool.make_room(nbytes, family)

            # The pool hears of the new segments only at the end, so that a master that starts anew does not drop
            # those it is about to find again.
            held = grown(
                held, tokens, positions, pieces(len(held), len(tokens), positions, cuts, keep), fits, make
            )
            self._pool.set_master(family, held, self._segment_keys(family, held))
            return len(held)

    def put_mirror(
        self,
        family: FamilyKey,
        agent: str,
        tokens: Tokens,
        taken: Taken | None,
        read: ReadRows,
        *,
        same: int = 0,
        common: int = 0,
        positions: Positions | None = None,
        approximate_from: int | None = None,
    ) -> Receipt | None:
        """Capture one member's context at the end of its request.

        Args:
            tokens: ids of all tokens whose KV is in its pages, int32 [n].
            taken: what its plan took from the family's master and did not compute again. None: there is no plan;
                what equals the family's KV is found by content (needs `remake`, otherwise everything is stored).
            read: reads its rows by token number.
            same: leading tokens whose KV is what the previous mirror holds (cached since, or restored from it).
            common: leading tokens whose pages other members share through the engine's own prefix cache (at positions
                from 0 on); stored once for all of them.
            positions: where its tokens stand; default: token = position.
            approximate_from: first token whose KV is approximate.

        Returns:
            What was kept; None if there is no room (the previous mirror is forgotten: it is out of date).
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int32).copy()
        positions = positions or Positions.plain()
        with self._lock:
            held = self._pool.get_or_make(family)
            previous = held.mirrors.get(agent)
            content = content_of(
                self._layout, held, previous, tokens, taken, read, self._remake, same, positions
            )
            content = replace(content, approximate_from=approximate_from)
            room = 0
            if common and not content.same and positions.steps[0, 1] == 0:
                room = common * (self._layout.row_bytes + 4)
                if self._pool.make_room(room, family):
                    start = common_start(self._layout, held, tokens[:common], read)
                    content = replace(content, references=starting_with(start, content.references))
            made = draft(self._layout, content, previous, self._dense_above)
            if not self._pool.make_room(room + made.nbytes, family):
                self._pool.drop_mirror(family, agent)
                return None
            mirror = made.read(read)
            self._pool.set_mirror(family, agent, mirror)
            referenced = len(mirror) - mirror.index.rows
            return Receipt(len(mirror), len(made.own), referenced, mirror.nbytes)

    def find(self, family: FamilyKey, agent: str, prompt: Tokens) -> Found | None:
        """What can be restored of a member's next prompt; looks in memory, then in the tier."""
        with self._lock:
            mirror = self._mirror(family, agent) or self._fetch(family, agent)
            size = mirror.matching(prompt) if mirror is not None else 0
            if mirror is None or not size:
                return None
            from_ = mirror.approximate_from
            return Found(size, from_ if from_ is not None and from_ < size else None, mirror.positions)

    def mirror(self, family: FamilyKey, agent: str) -> Mirror | None:
        """A member's mirror as it is: memory first, then the tier."""
        with self._lock:
            return self._mirror(family, agent) or self._fetch(family, agent)

    def holds(self, family: FamilyKey, agent: str) -> bool:
        """Whether memory holds a member's mirror; asks no tier."""
        with self._lock:
            return self._mirror(family, agent) is not None

    def restore(self, family: FamilyKey, agent: str, start: int, end: int) -> Work | None:
        """How to write tokens [start, end) of a member's mirror into its pages; None if it is gone.

        The work holds its own references: eviction while it is being executed does not harm it.
        """
        with self._lock:
            mirror = self._mirror(family, agent)
            return Work.of(mirror, start, end) if mirror is not None and end <= len(mirror) else None

    def master(self, family: FamilyKey) -> Master | None:
        """The family's master, to bring it back into pages: memory first, then the tier.

        Its rows stand at their segments' own positions. Once they are in pages, `put_master` under the engine's new
        id finds the same bytes and stores nothing twice.
        """
        with self._lock:
            held = self._pool.get(family)
            if held is not None and held.master is not None:
                return held.master
            if self._spill is None:
                return None
            master = self._spill.load_master(family, held, lambda n: self._pool.make_room(n, family))
            if master is not None:
                self._pool.set_master(family, master, self._segment_keys(family, master))
            return master

    def master_in_memory(self, family: FamilyKey) -> Master | None:
        """The family's master if memory holds it; asks no tier."""
        with self._lock:
            held = self._pool.get(family)
            return held.master if held is not None else None

    def flush(self, family: FamilyKey) -> None:
        """Write what is new of a family to the tier, and keep it in memory (a round ended, or the engine stops)."""
        with self._lock:
            held = self._pool.get(family)
            if held is not None and self._spill is not None:
                self._spill.save(family, held)

    def release(self, family: FamilyKey) -> bool:
        """Forget a family, in the tier too; False if memory holds none."""
        with self._lock:
            if self._spill is not None:
                self._spill.delete(family)
            return self._pool.release(family)

    def expire(self) -> int:
        """Evict families nobody used for `idle_seconds`; returns how many."""
        with self._lock:
            return len(self._pool.expire(self._idle_seconds))

    def report(self) -> StoreReport:
        """Sizes of everything, and counts."""
        with self._lock:
            families = {
                key: family_report(self._layout, family) for key, family in self._pool.families.items()
            }
            tier = self._spill.counts if self._spill is not None else None
            return StoreReport(self._pool.used, self._pool.budget, families, self._pool.counts, tier)

    def check(self) -> None:
        """Raise AssertionError unless everything agrees."""
        with self._lock:
            self._pool.check()

    def _segment_keys(self, family: FamilyKey, master: Master) -> list[bytes]:
        scope = self.keys.scope_id(family)
        return [segment_key(scope, s.context, s.first, s.tokens) for s in master.segments]

    def _mirror(self, family: FamilyKey, agent: str) -> Mirror | None:
        held = self._pool.get(family)
        return held.mirrors.get(agent) if held is not None else None

    def _fetch(self, family: FamilyKey, agent: str) -> Mirror | None:
        """Bring a mirror back from the tier, if there is room for it."""
        if self._spill is None:
            return None
        held = self._pool.get(family)
        mirror = self._spill.load_mirror(family, agent, held, lambda n: self._pool.make_room(n, family))
        if mirror is not None:
            self._pool.set_mirror(family, agent, mirror)
        return mirror
