"""Which waiting requests vLLM must leave alone: members gather, are planned, and wait until their pages are filled.

vLLM asks for every waiting request in every scheduling step, again after a failed allocation and after preemption, so
everything here is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokendance_sdk.protocol import FallbackReason
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.gathering import Gathering
from tokendance_engine.adapters.vllm.letting_go import LettingGo
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.mirror_scheduler import Mirrors
from tokendance_engine.adapters.vllm.preparer import Preparer
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.adapters.vllm.round_stats import RoundStats
from tokendance_engine.adapters.vllm.step_work import StepWork

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger("vllm.tokendance")


@dataclass(frozen=True, slots=True)
class Admission:
    """All that decides it.

    Attributes:
        members: those in the engine, by request.
        page_size: tokens per page.
    """

    members: Mapping[str, Member]
    gathering: Gathering
    planner: RoundPlanner
    preparer: Preparer
    families: Families
    work: StepWork
    mirrors: Mirrors
    letting_go: LettingGo
    stats: RoundStats
    page_size: int

    def hold(self, request: Request, cached: int) -> bool:
        """Whether vLLM must leave a waiting request alone for now.

        Args:
            cached: tokens vLLM's prefix cache holds, a multiple of the page size.
        """
        member = self.members.get(request.request_id)
        taken = self.families.pool.taken
        try:
            held = self._hold(request, member, cached)
        except Exception:
            logger.exception(
                "TokenDance: planning request %s failed; it is served plainly", request.request_id
            )
            held = False
            if member is not None:
                self.letting_go.settle(member, FallbackReason.WORKER_ERROR)
        if member is not None and (member.relaid or (not held and self.families.pool.taken > taken)):
            # What vLLM has found is of the prompt as it lay before, or among the pages a master just took: vLLM
            # holds no reference to them yet, so it must look again.
            member.relaid = False
            self.gathering.hold()
            return True
        return held

    def _hold(self, request: Request, member: Member | None, cached: int) -> bool:
        keys = request.block_hashes[: cached // self.page_size]
        self.families.make_room(-(-request.num_tokens // self.page_size), keys)
        if member is None or member.seated or member.ready:
            return False
        if member.preparation is not None or self.mirrors.waits(member):
            return True
        if member.reason is None and member.found is None:
            if self.mirrors.is_waiting() and any(
                self.mirrors.waits(m) for m in self.members.values() if m.key == member.key
            ):
                return True  # what comes back of their histories is part of the plan
            group = self.gathering.complete(member)
            if group is None:
                return True
            self.stats.gathered(group)
            members = [m for m in group if m.reason is None]
            for each in members:
                each.cached = self.preparer.cached(each)
            self.mirrors.revive(member)
            for family in dict.fromkeys(m.family for m in members):
                self.planner.plan([m for m in members if m.family == family])
        if member.reason is not None:
            if self._brings_back(member):
                return True
            member.cached = cached
            return False
        assert member.master is not None
        if not self.work.compute_master(member.master):
            self.gathering.hold()
            return True
        return self._brings_back(member) or self._prepare(member)

    def _brings_back(self, member: Member) -> bool:
        """Whether a member must wait for pages of its stored history, or for room for them."""
        if not self.mirrors.lacks(member):
            return False
        if not self.preparer.has_seat(member) or not self.mirrors.restore(member):
            self.gathering.hold()
        return True

    def _prepare(self, member: Member) -> bool:
        """Have a member's pages filled; True if it waits for that, or for room."""
        master, outcome = member.master, self.preparer.prepare(member)
        if isinstance(outcome, FallbackReason):
            self.letting_go.settle(member, outcome)
            return False
        if not outcome:
            self.gathering.hold()
        elif master is not None:
            self.mirrors.captures.keep_master(member, master)
        return True
