"""The scheduler half of the connector: gathers rounds, plans members, promises tokens, hands work to the worker half.

vLLM asks `promise` for every waiting request in every scheduling step, again after a failed allocation and after
preemption, so everything here is idempotent until `bind_plan` confirms that pages were allocated.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tokendance_sdk.protocol import BODY_KEY, FallbackReason
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.gathering import Gathering
from tokendance_engine.adapters.vllm.intake import Intake
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.adapters.vllm.step_work import StepWork
from tokendance_engine.adapters.vllm.unwritten import Unwritten
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.plan import make_plan
from tokendance_engine.rounds.gather import Gather

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tokendance")


class SchedulerSide:
    """Rounds and promises of one engine."""

    def __init__(self, config: VllmConfig, settings: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        self._settings = settings
        self._page_size = config.cache_config.block_size
        self._max_seqs = config.scheduler_config.max_num_seqs
        self._intake = Intake(config, settings, kv_cache_config)
        self._members: dict[str, Member] = {}
        self._gather = Gather(settings.gather_ms / 1e3, settings.gather_cap_ms / 1e3)
        self._gathering = Gathering(self._gather, self._members)
        self._families = Families(self._page_size, settings.master_share)
        self._planner = RoundPlanner(
            self._families, settings, config.model_config.max_model_len, self._intake.neutral
        )
        self._unwritten = Unwritten(self._page_size)
        limit = settings.max_round_tokens or config.scheduler_config.max_num_batched_tokens
        self._work = StepWork(self._families, self._page_size, limit)

    def bind(self, manager: KVCacheManager) -> None:
        """Take vLLM's page pool; masters are allocated from it."""
        self._families.bind(manager.block_pool)

    def on_new_request(self, request: Request) -> None:
        """Register a request; untagged ones are only watched while they run."""
        self._unwritten.add(request)
        member = self._intake.member(request, time.monotonic())
        if member is None:
            return
        self._members[request.request_id] = member
        self._gathering.add(member)
        family, agent = self._families.get(member.family), member.tag.agent_id
        if member.reason is None and family is not None and agent in family.chains:
            member.follow(family.chains[agent], self._page_size)

    def promise(self, request: Request, cached: int) -> int | None:
        """How many tokens beyond vLLM's cache the worker will provide; None: ask again in the next step.

        Args:
            cached: tokens vLLM's prefix cache holds, a multiple of the page size.
        """
        try:
            return self._promise(request, cached)
        except Exception:
            logger.exception(
                "TokenDance: planning request %s failed; it is served plainly", request.request_id
            )
            member = self._members.get(request.request_id)
            if member is not None:
                self._settle(member, FallbackReason.WORKER_ERROR)
            return 0

    def _promise(self, request: Request, cached: int) -> int | None:
        if self._unwritten.promised(request, cached):
            return None
        keys = request.block_hashes[: cached // self._page_size]
        self._families.make_room(-(-request.num_tokens // self._page_size), keys)
        member = self._members.get(request.request_id)
        if member is None:
            return 0
        first_time = member.cached is None
        member.cached = member.cached if member.seated else cached
        if member.reason is not None or member.admitted:
            return 0
        gone = False
        if member.found is None:
            group = self._gathering.complete(member, first_time)
            if group is None:
                return None
            hit = self._families.cached(keys)
            self._planner.plan([m for m in group if m.reason is None])
            # Where the master took pages that vLLM has just found for this request, vLLM must look again.
            gone = any(page.block_hash is None for page in hit)
        if member.master is not None and not self._work.compute_master(member.master):
            self._gathering.hold()
            return None
        if gone or self._unwritten.in_progress(request, cached):
            return None
        return 0 if member.reason is not None else self._plan_member(member, cached)

    def _plan_member(self, member: Member, cached: int) -> int | None:
        assert member.backend is not None
        size = len(member.prompt)
        plan = make_plan(size, cached, member.found or [], member.backend, self._settings.tail_tokens)
        start = plan.approximate_from
        page_is_open = start is not None and (start // self._page_size + 1) * self._page_size > size
        if plan.reused + plan.selected < self._settings.min_reused_tokens or page_is_open:
            # A page that the prompt does not fill has no key yet, so it could not be kept apart.
            covered = sum(s.end - s.start for s in member.found or []) >= self._settings.min_reused_tokens
            reason = FallbackReason.PREFIX_CACHED if covered and cached else FallbackReason.NO_GAIN
            self._settle(member, reason)
            return 0
        if not self._work.fits(plan):
            self._gathering.hold()
            return None
        member.key_apart(None if start is None else start // self._page_size)
        member.plan = plan
        return plan.promised

    def bind_plan(self, request: Request, page_ids: list[int], external: int) -> None:
        """Pages were allocated: turn the promise, if there is one, into this step's work.

        Args:
            page_ids: the request's page table.
            external: tokens vLLM counts on; 0 when it dropped the promise.
        """
        member = self._members.get(request.request_id)
        if member is None:
            return
        member.seated = True
        if member.plan is None or member.admitted:
            return
        if external != member.plan.promised:
            self._settle(member, FallbackReason.UNSUPPORTED_REQUEST)
            return
        first, last = member.plan.cached // self._page_size, -(-member.plan.end // self._page_size)
        try:
            self._work.admit(member, page_ids)
            self._unwritten.promise(request.block_hashes[first:last])
        except Exception:
            # vLLM already counts on the tokens: they must come back as load errors.
            logger.exception("TokenDance: handing over request %s failed", request.request_id)
            self._work.meta.lost.extend(page_ids[first:])
            self._settle(member, FallbackReason.WORKER_ERROR)

    def build_meta(self, output: SchedulerOutput) -> StepMeta:
        """This step's work; called once at the end of every scheduling step."""
        meta = self._work.take()
        try:
            self._end_step(meta, output.total_num_scheduled_tokens == 0)
        except Exception:
            logger.exception(
                "TokenDance: closing a step failed"
            )  # its work must reach the worker all the same
        return meta

    def _end_step(self, meta: StepMeta, nothing_ran: bool) -> None:
        self._unwritten.next_step()
        self._work.unpin()
        self._families.give_way(min(self._max_seqs, self._families.pages // 20))
        idle = nothing_ran and meta.is_empty()
        if idle:
            self._unblock()
        self._gathering.rest(idle)
        if self._families.changed:
            self._families.changed = False
            meta.families = self._families.snapshot()

    def _unblock(self) -> None:
        """Nothing ran although members pin a master: they do not fit beside it, and vLLM asks them in turn."""
        for member in self._members.values():
            if member.master is not None:
                self._settle(member, FallbackReason.NOT_ENOUGH_PAGES)

    def hear(self, report: WorkerReport | None, failed_pages: Collection[int]) -> None:
        """Take in what the worker half said about a step.

        Args:
            failed_pages: pages whose load failed. vLLM keeps their keys, though they hold garbage until computed
                again, which never happens if their request ends or is preempted first.
        """
        if failed_pages:
            self._families.forget_pages(set(failed_pages))
        if report is None:
            return
        if report.gate is not None and report.gate[0] is not None:
            self._intake.unsupported = report.gate[0]
        for master_id in report.broken_masters:
            family = self._families.find(master_id)
            if family is not None:
                self._families.retire(family)
        for request_id, member in self._members.items():
            member.times = report.times.get(request_id, member.times)
            waits = member.master is not None and member.master.id in report.broken_masters
            if request_id in report.failed or waits:
                self._settle(member, FallbackReason.WORKER_ERROR)

    def finish(self, request: Request) -> dict[str, Any] | None:
        """A request ended (also by abort): remember how its pages are keyed, and report."""
        self._unwritten.drop(request)
        member = self._members.pop(request.request_id, None)
        if member is None:
            return None
        self._gathering.remove(member)
        self._unpin(member)
        chain = member.chain()
        if chain.points or member.admitted:
            self._families.get_or_make(member.family).remember(member.tag.agent_id, chain)
            self._families.changed = True
        return {BODY_KEY: member.report(self._page_size).model_dump(mode="json")}

    def reset(self) -> bool:
        """Forget all masters that no member needs."""
        return self._families.clear()

    def check(self) -> None:
        """Raise AssertionError unless masters, pins and members agree."""
        self._families.check()
        pins = [*self._work.read, *(m.master for m in self._members.values() if m.master is not None)]
        assert all(pins.count(master) == master.users for master in pins)

    def _settle(self, member: Member, reason: FallbackReason) -> None:
        member.reason = reason
        member.found = member.found or []
        if not member.admitted:
            member.plan = None
            member.key_apart(None)
        self._unpin(member)

    def _unpin(self, member: Member) -> None:
        if member.master is not None:
            master, member.master = member.master, None
            self._families.release(master)
