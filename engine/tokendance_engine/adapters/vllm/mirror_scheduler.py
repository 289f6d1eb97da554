"""The scheduler half of stored histories: who is asked about, and what comes back into which pages.

Like everything a member gets, its history is prepared, not promised: it comes back into pages of vLLM's pool while
vLLM holds the member back, and is keyed under the member's own key chain once the worker has confirmed it. From then
on it is a cached prefix like any other, so plans, fillers and salts need not know where it came from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.family import FamilyKey
from tokendance_engine.adapters.vllm.history import chain_of, in_common
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.mirror_captures import Captures, owner_of
from tokendance_engine.adapters.vllm.mirror_jobs import (
    FindJob,
    Held,
    MasterRestore,
    MirrorReport,
    MirrorWork,
    RestoreJob,
)
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.config import NONE, EngineConfig

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

logger = init_logger("vllm.tokendance")


class Mirrors:
    """Histories of this engine's members.

    Args:
        settings: with `cpu_bytes` 0 every method is a no-op.
        families: masters, which give way if pages are short, and members' chains.
        placement: says whether the model has room for a member's fillers and positions.
        members: all members by request id; kept up to date by the caller.
        page_size: tokens per page.
        workers: processes that each hold a part of every token's KV.
        patience: seconds after which a question or a restore that no worker answered for counts as failed.
    """

    def __init__(
        self,
        settings: EngineConfig,
        families: Families,
        placement: Placement,
        members: Mapping[str, Member],
        page_size: int,
        workers: int = 1,
        patience: float = 30.0,
    ) -> None:
        self.on = settings.cpu_bytes > 0
        self.patience = patience
        self.captures = Captures(self.on, page_size)
        self._tier = settings.tiers != NONE
        self._families = families
        self._placement = placement
        self._members = members
        self._page_size = page_size
        self._workers = workers
        self._pool: PagePool | None = None
        self._work = MirrorWork()
        self._asked: dict[str, float] = {}
        self._masters: dict[FamilyKey, tuple[int, int]] = {}
        self._answers: dict[str, list[Held | None]] = {}
        self._filling: dict[str, float] = {}
        self._refused: set[str] = set()

    def bind(self, pool: PagePool) -> None:
        """Use vLLM's page pool."""
        self._pool = pool

    def arrived(self, member: Member) -> None:
        """Ask what the store holds of a new member."""
        owner = owner_of(member)
        if not self.on or not member.storable:
            return
        self.captures.starts.arrived(member)
        if not (self._tier or self.captures.knows(owner)):
            return
        name = member.request.request_id
        self._work.finds.append(FindJob(name, owner))
        self._asked[name] = time.monotonic() + self.patience

    def waits(self, member: Member) -> bool:
        """Whether the worker still owes an answer about this member."""
        name = member.request.request_id
        return name in self._asked or name in self._filling

    def is_waiting(self) -> bool:
        """Whether the worker owes any answer."""
        return bool(self._asked or self._filling)

    def lacks(self, member: Member) -> bool:
        """Whether pages of its history are to come back, and are not there."""
        size = member.history.usable(member, self._page_size)
        return member.history.pages is None and len(self._cached(member, size)) * self._page_size < size

    def restore(self, member: Member) -> bool:
        """Have a member's history brought back; False if there is no room for it yet."""
        size, pool = member.history.size, self._need_pool()
        cached = self._cached(member, size)
        need = self._pages(member) - len(cached) + sum(b.ref_cnt == 0 for b in cached) + self._reserved()
        if pool.free < need:
            self._families.give_way(need)
        if pool.free < need:
            self._refused.add(member.request.request_id)
            return False
        pool.hold(cached)
        table = [*cached, *pool.take(size // self._page_size - len(cached))]
        made = member.history.pages = Preparation(table, len(cached))
        name = member.request.request_id
        self._work.restores.append(
            RestoreJob(name, owner_of(member), made.pages(), len(cached) * self._page_size, size)
        )
        self._filling[name] = time.monotonic() + self.patience
        return True

    def revive(self, member: Member) -> None:
        """Bring a session's lost master back before its round is planned, if the store has all of it.

        Only where the round goes on from it: otherwise a new one is made anyway.
        """
        family = self._families.get(member.family)
        lost = family.lost if family is not None else None
        stored = self._masters.get(member.family)
        if family is None or lost is None or stored != (lost.id, lost.transcript.rows):
            return
        if not lost.transcript.counts() <= Counter(segment.key for segment in member.user_segments):
            return
        master = self._families.revive(family)
        if master is not None:
            self._work.revived.append(
                MasterRestore(owner_of(member), master.id, master.pages(), master.transcript.rows)
            )

    def hear(self, report: MirrorReport) -> None:
        """Take in what the worker half said."""
        for name, answers in report.held.items():
            if name in self._asked:
                self._answers.setdefault(name, []).extend(answers)
                if len(self._answers[name]) >= self._workers:
                    self._answered(name)
        for name in report.restored:
            member = self._members.get(name)
            if self._filling.pop(name, None) is not None and member is not None:
                self._confirmed(member)
        for name in report.lost:
            member = self._members.get(name)
            if self._filling.pop(name, None) is not None and member is not None:
                self.give_up(member)
        self.captures.pending.difference_update(report.captured)
        for key in report.released:
            self._families.release_family(key)

    def ended(self, member: Member) -> None:
        """A member ended, in whatever state."""
        name = member.request.request_id
        self._asked.pop(name, None)
        self._answers.pop(name, None)
        self._filling.pop(name, None)
        self.release(member)
        if not any(m.family == member.family for m in self._members.values()):
            self._masters.pop(member.family, None)  # the next round asks again
        if self.on and member.storable:
            self._work.ended.append(name)

    def release(self, member: Member) -> None:
        """Let go of a member's restored pages: vLLM has seated it, or it goes on without them."""
        pages, member.history.pages = member.history.pages, None
        if pages is not None:
            pages.release(self._need_pool())

    def give_up(self, member: Member) -> None:
        """A member's history does not come back: it is computed."""
        self.release(member)
        member.history.size = 0

    def unblock(self) -> None:
        """Nothing runs: those who wait for room go without, and those who are back make room.

        Members that only wait for their round are left alone.
        """
        for member in self._members.values():
            stuck = member.history.pages is not None or member.request.request_id in self._refused
            if stuck and not member.seated and not self.waits(member):
                self.give_up(member)

    def reset(self) -> None:
        """Forget everything that is stored: the model's weights may have changed."""
        if self.on:
            self._masters.clear()
            self.captures.forget()
            self._work.reset = True

    def expire(self) -> None:
        """Go on without answers that are overdue; called once a step, at its end."""
        self._refused.clear()
        now = time.monotonic()
        overdue = {
            n for waiting in (self._asked, self._filling) for n, until in waiting.items() if until < now
        }
        if overdue:
            nothing = (None,) * self._workers
            self.hear(MirrorReport(held=dict.fromkeys(overdue, nothing), lost=sorted(overdue)))

    def take(self) -> MirrorWork | None:
        """The step's work, if there is any; called once at the end of every scheduling step."""
        work, self._work = self._work, MirrorWork()
        work.masters, self.captures.masters = self.captures.masters, []
        work.captures, self.captures.jobs = self.captures.jobs, []
        return None if work.is_empty() else work

    def tables(self) -> list[list[KVCacheBlock]]:
        """Pages held for restored members, once each; for `check`."""
        return [list(m.history.pages.table) for m in self._members.values() if m.history.pages is not None]

    def _answered(self, name: str) -> None:
        member, held = self._members.get(name), Held.by_all(self._answers.pop(name, [None]))
        if self._asked.pop(name, None) is not None and member is not None and held is not None:
            if held.master is not None:
                self._masters[member.family] = held.master
            self._found(member, held)

    def _found(self, member: Member, held: Held) -> None:
        if member.found is not None or member.seated:
            return
        family = self._families.get(member.family)
        known = family is not None and family.chain(member.tag.agent_id, member.method) is not None
        mine = self._made_by_its_backend(member)
        if member.reason is None and not known and mine:
            lies = chain_of(held, self._page_size).usable(member.user_prompt, self._page_size)
            if self._placement.fits(member, lies):
                member.begin(lies)  # vLLM looks it up anew in the next step
        size = in_common(member, held, self._page_size)
        if held.approximate_from is not None and not mine:
            size = min(size, held.approximate_from // self._page_size * self._page_size)
        member.history.size, member.history.lies = size, member.lies.before(size, self._page_size)

    def _made_by_its_backend(self, member: Member) -> bool:
        """Whether what is approximate in a member's stored history was made as its own backend would make it.

        What an earlier engine has stored is the default backend's.
        """
        made_by = self.captures.made_by(owner_of(member))
        if made_by is None:
            return member.backend is not None and not member.backend.reference
        return made_by == member.method

    def _confirmed(self, member: Member) -> None:
        history = member.history
        pages = history.pages
        if pages is None or not history.usable(member, self._page_size):
            self.give_up(member)
            return
        pages.publish(self._need_pool(), member.request.block_hashes, self._page_size)
        history.restored = (len(pages.table) - pages.cached) * self._page_size

    def _cached(self, member: Member, size: int) -> list[KVCacheBlock]:
        return self._need_pool().lookup(member.request.block_hashes[: size // self._page_size])

    def _pages(self, member: Member) -> int:
        """Pages of a prompt and the token after it."""
        return -(-(len(member.prompt) + 1) // self._page_size)

    def _reserved(self) -> int:
        """Pages that members whose history is back still need beyond it."""
        return sum(
            self._pages(m) - len(m.history.pages.table)
            for m in self._members.values()
            if m.history.pages is not None and m.preparation is None
        )

    def _need_pool(self) -> PagePool:
        assert self._pool is not None, "vLLM has not bound its block pool"
        return self._pool
