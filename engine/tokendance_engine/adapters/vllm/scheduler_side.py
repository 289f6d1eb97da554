"""The scheduler half of the connector: members come, are admitted, work in steps, are heard of, and leave."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tokendance_sdk.protocol import BODY_KEY, FallbackReason
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.admission import Admission
from tokendance_engine.adapters.vllm.gathering import Gathering
from tokendance_engine.adapters.vllm.hearing import Hearing
from tokendance_engine.adapters.vllm.intake import Intake
from tokendance_engine.adapters.vllm.integrity import check_references
from tokendance_engine.adapters.vllm.letting_go import LettingGo
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import Shifts, StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.mirror_scheduler import Mirrors
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.adapters.vllm.preparer import Preparer
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.adapters.vllm.round_stats import RoundStats, page_bytes
from tokendance_engine.adapters.vllm.step_work import StepWork
from tokendance_engine.adapters.vllm.support import max_positions
from tokendance_engine.adapters.vllm.unwritten import Unwritten
from tokendance_engine.config import EngineConfig
from tokendance_engine.observe.metrics import Record
from tokendance_engine.rounds.gather import Gather

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tokendance")


class SchedulerSide:
    """Rounds of one engine."""

    def __init__(self, config: VllmConfig, settings: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        self._settings = settings
        self._page_size = int(config.cache_config.block_size)
        self._max_seqs = int(config.scheduler_config.max_num_seqs)
        self._intake = Intake(config, settings, kv_cache_config)
        self._members: dict[str, Member] = {}
        self._shifted: dict[str, Member] = {}
        self._unwritten = Unwritten(self._page_size)
        self._gather = Gather(settings.gather_ms / 1e3, settings.gather_cap_ms / 1e3)
        self._gathering = Gathering(self._gather, self._members, self._unwritten.live)
        self._families = Families(self._page_size, settings.master_share)
        self._placement = Placement(
            settings,
            self._page_size,
            config.model_config.max_model_len,
            max_positions(config.model_config),
            self._intake.filler,
        )
        self._planner = RoundPlanner(
            self._families, settings, self._placement, config.model_config.max_model_len, self._intake.neutral
        )
        limit = settings.max_round_tokens or config.scheduler_config.max_num_batched_tokens
        self._work = StepWork(self._families, limit)
        self.mirrors = Mirrors(
            settings,
            self._families,
            self._placement,
            self._members,
            self._page_size,
            int(config.parallel_config.world_size),
        )
        self._stats = RoundStats(page_bytes(kv_cache_config) * int(config.parallel_config.world_size))
        self._manager: KVCacheManager | None = None
        self._letting_go = LettingGo(self._families, self._page_size)
        self._hearing = Hearing(
            self._members,
            self._work,
            self._families,
            self._letting_go,
            self._intake,
            self._placement,
            self.mirrors,
            self._stats,
            self._page_size,
        )
        self._admission: Admission | None = None

    @property
    def pool(self) -> PagePool:
        """vLLM's pages."""
        return self._families.pool

    def bind(self, manager: KVCacheManager) -> None:
        """Take vLLM's page pool; masters and members' pages are allocated from it."""
        pool = PagePool(manager.block_pool)
        self._manager = manager
        self._families.bind(pool)
        self.mirrors.bind(pool)
        preparer = Preparer(
            pool,
            self._families,
            self._placement,
            self._work,
            self._unwritten,
            self._members,
            self._page_size,
            self._max_seqs,
            self._settings.min_reused_tokens,
        )
        self._admission = Admission(
            self._members,
            self._gathering,
            self._planner,
            preparer,
            self._families,
            self._work,
            self.mirrors,
            self._letting_go,
            self._stats,
            self._page_size,
        )

    def on_new_request(self, request: Request) -> None:
        """Register a request; untagged ones are only watched while they run."""
        self._unwritten.add(request)
        member = self._intake.member(request, time.monotonic())
        if member is None:
            return
        self._members[request.request_id] = member
        self._gathering.add(member)
        family = self._families.get(member.family)
        chain = family.chain(member.tag.agent_id, member.method) if family is not None else None
        if member.reason is None and chain is not None:
            lies = chain.usable(member.user_prompt, self._page_size)
            if self._placement.fits(member, lies):
                member.begin(lies, chain.usable_keys(member.user_prompt, lies, self._page_size))
        self.mirrors.arrived(member)

    def hold(self, request: Request, cached: int) -> bool:
        """Whether vLLM must leave a waiting request alone for now.

        Args:
            cached: tokens vLLM's prefix cache holds, a multiple of the page size.
        """
        assert self._admission is not None, "vLLM has not bound its block pool"
        return self._admission.hold(request, cached)

    def seat(self, request: Request) -> None:
        """VLLM gave a request its page table, which from now on holds the pages."""
        member = self._members.get(request.request_id)
        if member is None:
            return
        member.seated = True
        self._letting_go.release(member)
        self.mirrors.release(member)
        if member.lies.frame.steps:
            self._shifted[request.request_id] = member

    def build_meta(self, output: SchedulerOutput) -> StepMeta:
        """This step's work; called once at the end of every scheduling step."""
        meta = self._work.take()
        meta.mirrors = self.mirrors.take()
        meta.shifts = self._shifts(output.num_scheduled_tokens)
        try:
            self._end_step(meta, output.total_num_scheduled_tokens == 0)
        except Exception:
            logger.exception(
                "TokenDance: closing a step failed"
            )  # its work must reach the worker all the same
        return meta

    def _shifts(self, scheduled: dict[str, int]) -> Shifts | None:
        pieces = {}
        for request_id in self._shifted.keys() & scheduled.keys():
            member = self._shifted[request_id]
            start = member.request.num_computed_tokens
            parts = member.lies.frame.pieces(start, start + scheduled[request_id])
            pieces[request_id] = [(end - first, shift) for first, end, shift in parts]
        return Shifts(dict(scheduled), pieces) if pieces else None

    def _end_step(self, meta: StepMeta, nothing_ran: bool) -> None:
        self._work.unpin()
        for request_id in self._work.unanswered():
            self.hear(WorkerReport(failed=[request_id]))
        self._families.give_way(min(self._max_seqs, self._families.pages // 20))
        idle = nothing_ran and meta.is_empty() and not self._work.is_waiting()
        idle = idle and not self.mirrors.is_waiting()
        if idle:
            self._unblock()
        self.mirrors.expire()
        self._gathering.rest(idle)
        if self._families.changed:
            self._families.changed = False
            meta.families = self._families.snapshot()
            self._stats.holds(meta.families)

    def _unblock(self) -> None:
        """Nothing ran although members are planned: they do not fit beside their master or each other."""
        waiting = [m for m in self._members.values() if m.master is not None]
        for member in waiting:
            self._letting_go.settle(member, FallbackReason.NOT_ENOUGH_PAGES)
        if not waiting:
            self.mirrors.unblock()
            for member in self._members.values():
                if member.ready and not member.seated:
                    self._letting_go.release(member)  # still in the cache for whoever vLLM takes first

    def hear(self, report: WorkerReport | None) -> None:
        """Take in what the worker half said about a step."""
        if report is not None:
            self._hearing.hear(report)

    def finish(self, request: Request, pages: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ended (also by abort): remember how its pages lie, and report.

        Args:
            pages: its page table.

        Returns:
            Whether vLLM must hold its pages until the worker has captured them; the report.
        """
        self._unwritten.drop(request)
        self._shifted.pop(request.request_id, None)
        member = self._members.pop(request.request_id, None)
        if member is None:
            return False, None
        self._gathering.remove(member)
        self._work.answered(request.request_id)
        self._letting_go.unpin(member)
        self._letting_go.release(member)
        self.mirrors.ended(member)
        if member.seated and (member.lies.points or member.lies.filling.inserts):
            self._families.get_or_make(member.family).remember(member.tag.agent_id, member.chain())
            self._families.changed = True
        report = member.report(self._page_size)
        self._stats.ended(report, member.seated)
        return self.mirrors.captures.capture(request, member, pages), {
            BODY_KEY: report.model_dump(mode="json")
        }

    def take_stats(self) -> Record | None:
        """What the metrics must hear, if anything."""
        return self._stats.take()

    def reset(self) -> bool:
        """Forget all masters that no member needs."""
        self.mirrors.reset()
        return self._families.clear()

    def check(self) -> None:
        """Raise AssertionError unless masters, pins, members and vLLM's own reference counts agree."""
        self._families.check()
        pins = [*self._work.read, *(m.master for m in self._members.values() if m.master is not None)]
        assert all(pins.count(master) == master.users for master in pins)
        prepared = [m.preparation.table for m in self._members.values() if m.preparation is not None]
        assert all(m.lies.is_apart(self._page_size) for m in self._members.values() if m.seated)
        assert self._manager is not None
        masters = [m.blocks for m in self._families.masters()]
        check_references(self._manager, [*prepared, *self.mirrors.tables(), *masters])
