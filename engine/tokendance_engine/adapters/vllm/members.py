"""What the scheduler half knows about one tagged request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from tokendance_sdk.protocol import FallbackReason, MemberReport

from tokendance_engine.adapters.vllm.family import FamilyKey, Master
from tokendance_engine.adapters.vllm.rekey import Chain, Point, rekey, unkey
from tokendance_engine.reuse.backends import Backend
from tokendance_engine.reuse.plan import Plan
from tokendance_engine.reuse.ports import MemberJob, PageTable
from tokendance_engine.reuse.selection import Reused
from tokendance_engine.rounds.gather import Group
from tokendance_engine.rounds.tag import EngineTag
from tokendance_engine.segments.key import Segment, Tokens

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass(slots=True, eq=False)
class Member:
    """One tagged request from arrival to end.

    Attributes:
        prompt, segments: its tokens and their segments.
        backend: None for members that reuse nothing (`exact`, unsupported).
        group: the group it gathers in; None once planned or settled.
        cached: what vLLM's prefix cache held when last asked; None before the first time, fixed once seated.
        points: salts of its key chain (from earlier rounds, then its own).
        found: segments the master holds, after the group was planned.
        master: pinned until the member's load is bound.
        plan: the promise in force.
        seated: vLLM gave it pages, perhaps without a promise; after a preemption its own pages are in the cache.
        admitted: its load was handed to the worker.
        reason: why it takes vLLM's own path; final.
    """

    request: Request
    tag: EngineTag
    family: FamilyKey
    prompt: Tokens
    segments: list[Segment]
    backend: Backend | None
    arrived: float
    group: Group | None = None
    cached: int | None = None
    points: list[Point] = field(default_factory=list)
    own_point: Point | None = None
    found: list[Reused] | None = None
    master: Master | None = None
    plan: Plan | None = None
    seated: bool = False
    admitted: bool = False
    gathered_ms: float = 0.0
    group_size: int = 1
    times: tuple[float, float] | None = None
    reason: FallbackReason | None = None

    @property
    def key(self) -> tuple[FamilyKey, str]:
        """What its round is gathered by."""
        return self.family, self.tag.round_id

    def follow(self, chain: Chain, page_size: int) -> None:
        """Key the prompt as this agent's earlier, approximate pages were keyed, so that it finds them again."""
        for point in chain.usable(self.prompt, page_size):
            rekey(self.request, point)
            self.points.append(point)

    def key_apart(self, page: int | None) -> None:
        """Salt the request's keys from the page of its first approximate token on; None: it has none of its own."""
        if self.own_point is not None:
            if self.own_point.page == page:
                return
            self.points.remove(self.own_point)
            unkey(self.request, self.points)
            self.own_point = None
        if page is not None:
            self.own_point = Point.fresh(page)
            rekey(self.request, self.own_point)
            self.points.append(self.own_point)

    def chain(self) -> Chain:
        """How the pages of this context are keyed, for the agent's next round."""
        points = [p for p in self.points if p is not self.own_point or self.admitted]
        return Chain(np.array(self.request.all_token_ids, dtype=np.int32), tuple(points))

    def job(self, pages: PageTable, page_size: int) -> MemberJob:
        """The plan as work for the worker, on these pages."""
        plan, master = self.plan, self.master
        assert plan is not None
        assert master is not None
        spans = [self.prompt[a:b] for a, b in plan.compute]
        return MemberJob(
            self.request.request_id,
            master.id,
            master.pages(),
            pages,
            plan.cached // page_size,
            plan.restore,
            plan.compute,
            np.concatenate(spans) if spans else self.prompt[:0],
        )

    def report(self, page_size: int) -> MemberReport:
        """What was reused, and what not (`cached` counts whole pages; the last prompt token is always computed)."""
        plan = self.plan if self.admitted and self.reason is None else None
        cached = self.cached or 0
        first = (
            self.points[0].page * page_size if self.points and self.points[0] is not self.own_point else None
        )
        return MemberReport(
            round_id=self.tag.round_id,
            agent_id=self.tag.agent_id,
            group_size=self.group_size,
            role="member" if self.group_size > 1 else "solo",
            prompt_tokens=len(self.prompt),
            cached_tokens=cached,
            approximate_cached_tokens=max(0, cached - first) if first is not None else 0,
            reused_tokens=plan.reused if plan else 0,
            recomputed_tokens=plan.selected if plan else 0,
            fresh_tokens=plan.fresh + 1 if plan else len(self.prompt) - cached,
            matched=[(s.start, s.end) for s in self.found or []] if plan else [],
            gather_ms=round(self.gathered_ms, 3),
            restore_ms=round(self.times[0], 3) if self.times else None,
            compute_ms=round(self.times[1], 3) if self.times else None,
            backend=self.backend.name if self.backend else None,
            fidelity=self.tag.fidelity,
            fallback_reason=self.reason,
        )
