"""The worker half of stored histories: captures, restores and look-ups of one worker.

A fault costs what it touched and nothing else: a capture that fails is forgotten, a restore that fails is reported,
and every page that is waited for is given back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.mirror_jobs import (
    CaptureJob,
    FindJob,
    Held,
    MasterCapture,
    MasterRestore,
    MirrorReport,
    MirrorWork,
    Owner,
    RestoreJob,
)
from tokendance_engine.adapters.vllm.mirror_pages import reader, whole, write, write_master
from tokendance_engine.adapters.vllm.pages import PagedKV
from tokendance_engine.storage.keys import FamilyKey
from tokendance_engine.storage.spill import Spill
from tokendance_engine.storage.store import Store
from tokendance_engine.storage.tier_config import Later

logger = init_logger("vllm.tokendance")

_TIER_STARTS_S = 15.0
"""How long a look-up waits for a tier that is still opening (importing LMCache takes seconds)."""


class MirrorWorker:
    """One worker's store, behind the messages of `mirror_jobs`.

    Args:
        kv: the pages.
        store: what is kept.
        spill: the store's way to its tier, closed by `close`.
        tier: the tier itself.

    Attributes:
        faults: how often something raised, by what was being done.
        restored_tokens: tokens brought back since the start.
    """

    def __init__(
        self, kv: PagedKV, store: Store, spill: Spill | None = None, tier: Later | None = None
    ) -> None:
        self._kv = kv
        self.store = store
        self._spill = spill
        self._tier = tier
        self._aside = ThreadPoolExecutor(1, "tokendance-store") if spill is not None else None
        self._finding: dict[str, Future[Held | None]] = {}
        self._pinned: dict[str, FamilyKey] = {}
        self._report = MirrorReport()
        self._closed = False
        self.faults: dict[str, int] = {}
        self.restored_tokens = 0

    def run(self, work: MirrorWork | None) -> set[int]:
        """One step's work but for its masters, and answers that a tier has given meanwhile; never raises.

        Returns:
            Masters that did not come back.
        """
        self._answer()
        if work is None:
            return set()
        if work.reset:
            self._reset()
        for job in work.captures:
            self._capture(job)
        for revived in work.revived:
            self._revive(revived)
        for restore in work.restores:
            self._restore(restore)
        for name in work.ended:
            self._end(name)
        for find in work.finds:
            self._find(find)
        return set(self._report.broken)

    def keep(self, masters: Sequence[MasterCapture]) -> None:
        """Keep masters that this step's members took from; never raises."""
        for job in masters:
            try:
                self.put_master(job)
            except Exception:
                self._fault("keep_master")

    def take_report(self) -> MirrorReport:
        """What the scheduler half must hear."""
        report, self._report = self._report, MirrorReport()
        return report

    def status(self) -> dict[str, Any]:
        """Sizes and counts, for the status route."""
        made = self.store.report()
        return {
            "used_bytes": made.used,
            "budget_bytes": made.budget,
            "restored_tokens": self.restored_tokens,
            "evicted": made.counts.evicted,
            "expired": made.counts.expired,
            "refused": made.counts.refused,
            "faults": dict(self.faults),
            "tier": None
            if made.tier is None
            else {
                "error": self._tier.error if self._tier is not None else None,
                "hits": made.tier.hits,
                "misses": made.tier.misses,
                "failed_saves": made.tier.failed_saves,
                "broken": dict(made.tier.broken),
            },
            "sessions": [
                {
                    "session_id": key.session,
                    "agents": len(family.mirrors),
                    "master_rows": family.master_rows,
                    "dense_bytes": family.dense_bytes,
                    "stored_bytes": family.stored_bytes,
                    "ratio": round(family.ratio, 3),
                }
                for key, family in made.families.items()
            ],
        }

    def release(self, salt: str, session: str) -> bool:
        """Forget a session, in the tier too; False if memory held nothing of it."""
        return self.store.release(self.store.keys.family(salt, session))

    def close(self) -> None:
        """Write what is new of every session to the tier, and close it. Idempotent; never raises.

        VLLM may call it while Python shuts down, when no thread takes work any more.
        """
        if self._aside is None or self._spill is None or self._closed:
            return
        self._closed = True
        try:
            self._aside.shutdown(wait=True)
            for family in self.store.report().families:
                self._flush(family)
            self._spill.close()
        except Exception:
            self._fault("close")

    def _capture(self, job: CaptureJob) -> None:
        """The pages are given back whatever happens."""
        try:
            self.put_mirror(job)
        except Exception:
            self._fault("capture")
        finally:
            self._report.captured.append(job.request_id)

    def _revive(self, job: MasterRestore) -> None:
        try:
            self.get_master(job)
        except Exception:
            self._fault("revive")
            self._report.broken.append(job.master)

    def _restore(self, job: RestoreJob) -> None:
        started = time.perf_counter()
        try:
            self.get_mirror(job)
            self.restored_tokens += job.end - job.start
            self._report.restored[job.request_id] = (time.perf_counter() - started) * 1e3
        except Exception:
            self._fault("restore")
            self._report.lost.append(job.request_id)

    def _find(self, job: FindJob) -> None:
        try:
            family = self._family(job.owner)
            self.store.pin(family)
            self._pinned[job.request_id] = family
            if self._aside is not None and not self.store.holds(family, job.owner.agent):
                self._finding[job.request_id] = self._aside.submit(self._look, job.owner, True)
            else:
                self._report.held[job.request_id] = (self._look(job.owner),)
        except Exception:
            self._fault("find")
            self._report.held[job.request_id] = (None,)

    def _answer(self) -> None:
        for name in [name for name, future in self._finding.items() if future.done()]:
            try:
                self._report.held[name] = (self._finding.pop(name).result(),)
            except Exception:
                self._fault("find")
                self._report.held[name] = (None,)

    def _reset(self) -> None:
        try:
            for family in self.store.report().families:
                self.store.release(family)
        except Exception:
            self._fault("reset")

    def _end(self, name: str) -> None:
        """A member that was asked about has ended; the last one of a round makes its session due for the tier."""
        self._finding.pop(name, None)
        family = self._pinned.pop(name, None)
        if family is None:
            return
        try:
            self.store.unpin(family)
            self.store.expire()
            if self._aside is not None and family not in self._pinned.values():
                self._aside.submit(self._flush, family)
        except Exception:
            self._fault("end")

    # Those that touch KV, apart so that fault tests can replace them.
    def put_master(self, job: MasterCapture) -> None:
        family = self._family(job.owner)
        read = reader(self._kv, job.pages)
        self.store.put_master(family, job.master, job.tokens, read, positions=job.positions)

    def put_mirror(self, job: CaptureJob) -> None:
        family, agent = self._family(job.owner), job.owner.agent
        same, approximate = job.same, job.approximate_from
        before = self.store.mirror(family, agent) if same else None
        if before is not None and before.approximate_from is not None:
            # Rows that were approximate then are not what stands in pages that are keyed as exact now.
            exact = len(job.tokens) if approximate is None else approximate
            if before.approximate_from < exact:
                same = min(same, before.approximate_from)
        self.store.put_mirror(
            family,
            agent,
            job.tokens,
            job.taken,
            reader(self._kv, job.pages),
            same=same,
            common=job.common,
            positions=job.positions,
            approximate_from=approximate,
        )

    def get_mirror(self, job: RestoreJob) -> None:
        work = self.store.restore(self._family(job.owner), job.owner.agent, job.start, job.end)
        if work is None:
            raise LookupError(f"the history of {job.owner.agent!r} is gone")
        write(self._kv, work, job.pages)

    def get_master(self, job: MasterRestore) -> None:
        master = self.store.master(self._family(job.owner))
        if master is None or master.id != job.master or not whole(master) or len(master) != job.rows:
            raise LookupError(f"master {job.master} is gone")
        write_master(self._kv, master, job.pages)

    def _look(self, owner: Owner, wait: bool = False) -> Held | None:
        if wait and self._tier is not None:
            self._tier.wait(_TIER_STARTS_S)
        mirror = self.store.mirror(self._family(owner), owner.agent)
        if mirror is None:
            return None
        master = self.store.master_in_memory(self._family(owner))
        held = (master.id, len(master)) if master is not None and whole(master) else None
        return Held(mirror.tokens, mirror.positions, mirror.approximate_from, held)

    def _flush(self, family: FamilyKey) -> None:
        try:
            self.store.flush(family)
        except Exception:
            self._fault("flush")

    def _family(self, owner: Owner) -> FamilyKey:
        return self.store.keys.family(owner.salt, owner.session)

    def _fault(self, what: str) -> None:
        self.faults[what] = self.faults.get(what, 0) + 1
        logger.exception("TokenDance: stored histories: %s failed; it is done without", what)
