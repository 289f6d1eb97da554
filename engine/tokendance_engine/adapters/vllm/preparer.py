"""Decide whether a planned member can be prepared in this step, and hand its pages out to be filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokendance_sdk.protocol import FallbackReason

from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.adapters.vllm.rekey import Disposition
from tokendance_engine.adapters.vllm.step_work import StepWork
from tokendance_engine.adapters.vllm.unwritten import Unwritten
from tokendance_engine.reuse.plan import Plan
from tokendance_engine.segments.transcript import Transcript


@dataclass(slots=True)
class Preparer:
    """Prepares members one by one, as pages, seats and the step's budget allow.

    Attributes:
        pool: vLLM's pages.
        families: masters, which give way if pages are short.
        placement: plans members.
        work: the step's work.
        unwritten: live requests.
        members: all members by request id; kept up to date by the caller.
        page_size: tokens per page.
        max_seqs: requests vLLM runs at once.
        least: a member that would reuse fewer tokens takes vLLM's own path.
    """

    pool: PagePool
    families: Families
    placement: Placement
    work: StepWork
    unwritten: Unwritten
    members: Mapping[str, Member]
    page_size: int
    max_seqs: int
    least: int

    def cached(self, member: Member) -> int:
        """Tokens of a member in the prefix cache, as vLLM would say: never all of the prompt.

        What is to come back of its stored history counts: it is brought back before the member is prepared.
        """
        keys = member.request.block_hashes[: (len(member.prompt) - 1) // self.page_size]
        found = len(self.pool.lookup(keys)) * self.page_size
        return max(found, member.history.usable(member, self.page_size))

    def prepare(self, member: Member) -> bool | FallbackReason:
        """Hand a member's pages out; False if there is no room for it yet, or why it reuses nothing after all."""
        assert member.master is not None
        transcript = member.master.transcript
        if self.cached(member) != member.cached:
            # Others computed or lost some of it since. Where this round has put no fillers, its tokens are those of
            # exact pages but its positions are not, so what is cached counts only as it lay before this round.
            member.lie(member.earlier)
            member.cached = self.cached(member)
            self.placement.lay_out(member, transcript)
        plan = self.placement.plan(member, transcript)
        if plan.reused + plan.selected < self.least:
            covered = sum(s.end - s.start for s in member.found or []) >= self.least
            return FallbackReason.PREFIX_CACHED if covered and member.cached else FallbackReason.NO_GAIN
        plan = self._without_idle_steps(member, plan, transcript)
        if self.unwritten.in_progress(member.request, plan.cached):
            return False
        cached = self.pool.lookup(member.request.block_hashes[: plan.cached // self.page_size])
        rest = -(-(len(member.prompt) + 1) // self.page_size) - plan.end // self.page_size
        needed = len(plan.private_pages(self.page_size)) + sum(b.ref_cnt == 0 for b in cached) + rest
        if self.pool.free < needed:
            self.families.give_way(needed)
        if not self.work.fits(member, plan) or self.pool.free < needed or not self.has_seat(member):
            return False
        member.plan = plan
        start = plan.approximate_from
        member.key_apart(None if start is None else start // self.page_size)
        member.preparation = Preparation.make(self.pool, cached, plan, member.master.blocks, self.page_size)
        self.work.hand_out(member)
        return True

    def _without_idle_steps(self, member: Member, plan: Plan, transcript: Transcript) -> Plan:
        """Take back fillers and skipped positions of regions of which nothing is reused after all."""
        if all(first < plan.end for first, _ in member.lies.frame.steps):
            return plan
        kept = member.lies.before(plan.end, self.page_size)
        member.lie(Disposition(kept.filling, kept.frame, member.lies.points))
        self.placement.find(member, transcript)
        return self.placement.plan(member, transcript)

    def has_seat(self, member: Member) -> bool:
        """Whether vLLM could run this one too once all others that hold pages run."""
        others = (m for m in self.members.values() if m is not member)
        prepared = sum(m.preparation is not None or m.history.pages is not None for m in others)
        return self.unwritten.running() + prepared < self.max_seqs
