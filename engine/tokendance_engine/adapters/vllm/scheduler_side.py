"""The scheduler half of the connector: gathers rounds, plans members, promises tokens, hands work to the worker half.

vLLM asks `promise` for every waiting request in every scheduling step, again after a failed allocation and after
preemption, so everything here is idempotent until `bind_plan` confirms that pages were allocated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from tokendance_sdk.protocol import BODY_KEY, FallbackReason
from vllm.config import VllmConfig
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.intake import Intake
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.rekey import Chain
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.plan import make_plan
from tokendance_engine.reuse.ports import MemberJob, PageTable
from tokendance_engine.rounds.gather import Gather

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tokendance")

_POLL_SLEEP = 0.004
"""Seconds to rest in a step that only holds members: bounds what waiting costs, delays nobody by more."""


class SchedulerSide:
    """Rounds and promises of one engine."""

    def __init__(self, config: VllmConfig, settings: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        self._settings = settings
        self._page_size = config.cache_config.block_size
        self._max_seqs = config.scheduler_config.max_num_seqs
        self._limit = settings.max_round_tokens or config.scheduler_config.max_num_batched_tokens
        self._intake = Intake(config, settings, kv_cache_config)
        self._gather = Gather(settings.gather_ms / 1e3, settings.gather_cap_ms / 1e3)
        self._families = Families(self._page_size, settings.master_share)
        self._planner = RoundPlanner(
            self._families, settings, config.model_config.max_model_len, self._intake.neutral
        )
        self._members: dict[str, Member] = {}
        self._meta = StepMeta()
        self._budget = self._limit
        self._held_until: float | None = None
        self._step = 0
        self._promised: dict[bytes, int] = {}

    def bind(self, manager: KVCacheManager) -> None:
        """Take vLLM's page pool; masters are allocated from it."""
        self._families.bind(manager.block_pool)

    def on_new_request(self, request: Request) -> None:
        """Register a tagged request; untagged ones are ignored."""
        member = self._intake.member(request, time.monotonic())
        if member is None:
            return
        self._members[request.request_id] = member
        # Members that reuse nothing still count as arrived, so that nobody waits for them.
        tag = member.tag
        member.group = self._gather.add(
            member.key, request.request_id, tag.parent, tag.round_size, member.arrived
        )
        family = self._families.get(member.family)
        if member.reason is None and family is not None and tag.agent_id in family.chains:
            member.follow(family.chains[tag.agent_id], self._page_size)

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
        if self._reads_unwritten_pages(request, cached):
            return None
        self._families.give_way(-(-(request.num_tokens - cached) // self._page_size))
        member = self._members.get(request.request_id)
        if member is None:
            return 0
        first_time = member.cached is None
        member.cached = cached if not member.admitted else member.cached
        if member.reason is not None or member.admitted:
            return 0
        if member.found is None and not self._plan_round(member, first_time):
            return None
        if member.reason is not None:
            return 0
        if not self._master_ready(member):
            return None
        return self._plan_member(member, cached)

    def _reads_unwritten_pages(self, request: Request, cached: int) -> bool:
        """vLLM keys promised pages before they exist: whoever hits them must come a step later."""
        if not cached or self._step not in self._promised.values():
            return False
        keys = request.block_hashes[: cached // self._page_size]
        return any(self._promised.get(bytes(key)) == self._step for key in keys)

    def _plan_round(self, member: Member, first_time: bool) -> bool:
        group = member.group
        assert group is not None
        now = time.monotonic()
        if first_time or not self._gather.is_closed(member.key, group, now):
            self._hold(self._gather.deadline(group))
            return False
        members = [self._members[r] for r in group.members if r in self._members]
        if (
            any(m.cached is None and m.reason is None for m in members)
            and now < member.arrived + self._settings.gather_cap_ms / 1e3
        ):
            self._hold(now + _POLL_SLEEP)  # not all have been asked yet what their cache holds
            return False
        size = len({m.tag.parent for m in members})
        for m in members:
            m.group_size, m.gathered_ms, m.group = size, (now - m.arrived) * 1e3, None
        self._planner.plan([m for m in members if m.reason is None])
        return True

    def _master_ready(self, member: Member) -> bool:
        """Hand out what the master still lacks; False while it does not fit into this step."""
        master = member.master
        if master is None or not master.pending:
            return True
        if self._budget > 0:
            job = master.next_job(self._budget)
            self._meta.masters.append(job)
            self._budget -= len(job.run.tokens)
        self._hold(time.monotonic())
        return not master.pending

    def _plan_member(self, member: Member, cached: int) -> int | None:
        assert member.backend is not None
        size = len(member.prompt)
        plan = make_plan(size, cached, member.found or [], member.backend, self._settings.tail_tokens)
        start = plan.approximate_from
        page_is_open = start is not None and (start // self._page_size + 1) * self._page_size > size
        if plan.reused + plan.selected < self._settings.min_reused_tokens or page_is_open:
            # A page that the prompt does not fill has no key yet, so it could not be kept apart.
            covered = sum(s.end - s.start for s in member.found or []) >= self._settings.min_reused_tokens
            self._settle(
                member, FallbackReason.PREFIX_CACHED if covered and cached else FallbackReason.NO_GAIN
            )
            return 0
        if plan.computed > self._budget and self._meta.members:
            self._hold(time.monotonic())
            return None
        member.key_apart(None if start is None else start // self._page_size)
        member.plan = plan
        return plan.promised

    def bind_plan(self, request: Request, page_ids: list[int], external: int) -> None:
        """Pages were allocated: turn the promise into this step's work.

        Args:
            page_ids: the request's page table.
            external: tokens vLLM counts on; 0 when it dropped the promise.
        """
        member = self._members.get(request.request_id)
        if member is None or member.plan is None or member.admitted:
            return
        if external != member.plan.promised:
            member.key_apart(None)
            self._settle(member, FallbackReason.UNSUPPORTED_REQUEST)
            return
        first = member.plan.cached // self._page_size
        try:
            self._hand_over(request, member, np.array(page_ids, dtype=np.int32))
        except Exception:
            # vLLM already counts on the tokens: they must come back as load errors.
            logger.exception("TokenDance: handing over request %s failed", request.request_id)
            self._meta.lost.extend(page_ids[first:])
            self._settle(member, FallbackReason.WORKER_ERROR)

    def _hand_over(self, request: Request, member: Member, pages: PageTable) -> None:
        plan, master = member.plan, member.master
        assert plan is not None
        assert master is not None
        tokens = (
            np.concatenate([member.prompt[a:b] for a, b in plan.compute])
            if len(plan.compute)
            else member.prompt[:0]
        )
        first = plan.cached // self._page_size
        self._meta.members.append(
            MemberJob(
                request.request_id,
                master.id,
                master.pages(),
                pages,
                first,
                plan.restore,
                plan.compute,
                tokens,
            )
        )
        for key in request.block_hashes[first : -(-plan.end // self._page_size)]:
            self._promised[bytes(key)] = self._step
        self._budget -= plan.computed
        member.admitted = True
        self._unpin(member)

    def build_meta(self, output: SchedulerOutput) -> StepMeta:
        """This step's work; called once at the end of every scheduling step."""
        meta, self._meta = self._meta, StepMeta()
        self._budget = self._limit
        self._step += 1
        self._families.give_way(min(self._max_seqs, self._families.pages // 20))
        if meta.is_empty():
            self._promised.clear()
            if output.total_num_scheduled_tokens == 0:
                self._unblock()
            if output.total_num_scheduled_tokens == 0 and self._held_until is not None:
                time.sleep(min(_POLL_SLEEP, max(0.0, self._held_until - time.monotonic())))
        self._held_until = None
        if self._families.changed:
            self._families.changed = False
            meta.families = self._families.snapshot()
        return meta

    def _unblock(self) -> None:
        """Nothing ran although members pin a master: they do not fit beside it, and vLLM asks them in turn."""
        for member in self._members.values():
            if member.master is not None:
                member.key_apart(None)
                self._settle(member, FallbackReason.NOT_ENOUGH_PAGES)

    def hear(self, report: WorkerReport) -> None:
        """Take in what the worker half said about a step."""
        if report.gate is not None and report.gate[0] is not None:
            self._intake.unsupported = report.gate[0]
        for request_id, times in report.times.items():
            if request_id in self._members:
                self._members[request_id].times = times
        broken = set(report.broken_masters)
        for master_id in broken:
            family = self._families.find(master_id)
            if family is not None:
                self._families.retire(family)
        for member in list(self._members.values()):
            waits = member.master is not None and member.master.id in broken
            if member.request.request_id in report.failed or waits:
                self._settle(member, FallbackReason.WORKER_ERROR)

    def finish(self, request: Request) -> dict[str, Any] | None:
        """A request ended (also by abort): remember how its pages are keyed, and report."""
        member = self._members.pop(request.request_id, None)
        if member is None:
            return None
        if member.group is not None:
            self._gather.remove(member.key, member.group, request.request_id)
        self._unpin(member)
        points = [p for p in member.points if p is not member.own_point or member.admitted]
        if points or member.admitted:
            family = self._families.get_or_make(member.family)
            tokens = np.array(request.all_token_ids, dtype=np.int32)
            family.chains[member.tag.agent_id] = Chain(tokens, tuple(points))
            self._families.changed = True
        return {BODY_KEY: member.report(self._page_size).model_dump(mode="json")}

    def reset(self) -> bool:
        """Forget all masters that no member needs."""
        return self._families.clear()

    def check(self) -> None:
        """Raise AssertionError unless masters, pins and members agree."""
        self._families.check()
        pins = [m.master for m in self._members.values() if m.master is not None]
        assert all(pins.count(master) == master.users for master in pins)

    def _settle(self, member: Member, reason: FallbackReason) -> None:
        member.reason = reason
        member.found = member.found or []
        self._unpin(member)

    def _unpin(self, member: Member) -> None:
        if member.master is not None:
            master, member.master = member.master, None
            self._families.release(master)

    def _hold(self, until: float) -> None:
        self._held_until = until if self._held_until is None else min(self._held_until, until)
