"""What the scheduler half knows about one tagged request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from tokendance_sdk.protocol import FallbackReason, MemberReport, PlacementReason

from tokendance_engine.adapters.vllm.family import FamilyKey, Master
from tokendance_engine.adapters.vllm.history import History
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.adapters.vllm.rekey import Chain, Disposition, Point, lay_out, rekey, unkey
from tokendance_engine.reuse.backends import Backend
from tokendance_engine.reuse.judge import Verdict
from tokendance_engine.reuse.plan import Plan
from tokendance_engine.reuse.selection import Reused
from tokendance_engine.rounds.gather import Group
from tokendance_engine.rounds.tag import EngineTag
from tokendance_engine.segments.filling import moved
from tokendance_engine.segments.key import Segment, Tokens

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.request import Request


@dataclass(slots=True, eq=False)
class Member:
    """One tagged request from arrival to end.

    It gathers with its group, is planned, prepared (its pages are filled while vLLM still holds it back) and ready;
    then vLLM finds all those pages in its prefix cache and seats it.

    Attributes:
        user_prompt, user_segments: its tokens and their segments as the user gave them.
        prompt, segments: the same with fillers; all indices below are into these.
        backend: None for members that reuse nothing (`exact`, unsupported).
        filler: token id of fillers; page_size: tokens per page, 0 if unknown.
        answer: most tokens it may generate; with `open_ended` that is all the context has room for.
        group: the group it gathers in; None once planned or settled.
        cached: what vLLM's prefix cache held when last asked; None before the first time, fixed once planned.
        lies: its fillers, positions and key salts (from earlier rounds, then its own).
        earlier: those of earlier rounds alone: how what is cached of it lies.
        own_point: the last of the salts, if it is this round's.
        found: segments the master holds, after the group was planned.
        master: pinned until the member's work is bound.
        plan: what is, or was, prepared.
        preparation: its pages until vLLM seats it.
        ready: its pages are filled and keyed.
        relaid: its tokens or keys changed since vLLM last looked it up.
        seated: vLLM gave it its page table; after a preemption its own pages are in the cache.
        reason: why it takes vLLM's own path; final.
        placement_reason: why not all of its regions share the master's pages.
        verdict: what its backend did in the worker.
        history: what is stored of its earlier context.
    """

    request: Request
    tag: EngineTag
    family: FamilyKey
    user_prompt: Tokens
    user_segments: list[Segment]
    backend: Backend | None
    arrived: float
    filler: int = 0
    page_size: int = 0
    answer: int = 1
    open_ended: bool = False
    prompt: Tokens = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    segments: list[Segment] = field(default_factory=list)
    group: Group | None = None
    cached: int | None = None
    lies: Disposition = field(default_factory=Disposition)
    earlier: Disposition = field(default_factory=Disposition)
    own_point: Point | None = None
    found: list[Reused] | None = None
    master: Master | None = None
    plan: Plan | None = None
    preparation: Preparation | None = None
    ready: bool = False
    relaid: bool = False
    seated: bool = False
    gathered_ms: float = 0.0
    group_size: int = 1
    times: tuple[float, float] | None = None
    verdict: Verdict = field(default_factory=Verdict)
    reason: FallbackReason | None = None
    placement_reason: PlacementReason | None = None
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.prompt, self.segments = self.user_prompt, self.user_segments

    @property
    def key(self) -> tuple[FamilyKey, str]:
        """What its round is gathered by, whatever backends its members use."""
        return self.family[:2], self.tag.round_id

    @property
    def method(self) -> str:
        """Identity of its backend; pages of different ones are never mixed up."""
        return self.backend.identity if self.backend is not None else ""

    @property
    def serial(self) -> bool:
        """Whether it is prepared in a step of its own."""
        return self.tag.execution == "serial"

    @property
    def storable(self) -> bool:
        """Whether its KV may be kept for the agent's next round, and brought back."""
        unsupported = (FallbackReason.UNSUPPORTED_MODEL, FallbackReason.UNSUPPORTED_REQUEST)
        known_ahead = self.backend is None or not (self.backend.at_work or self.backend.source != "master")
        return self.tag.named and known_ahead and self.reason not in unsupported

    def begin(self, earlier: Disposition, keys: Sequence[BlockHash] = ()) -> None:
        """Lay the prompt out as earlier rounds did, before vLLM has looked it up; `keys` as in `lie`."""
        self.earlier = earlier
        self.lie(earlier, keys)
        self.relaid = False

    def lie(self, disposition: Disposition, keys: Sequence[BlockHash] = ()) -> None:
        """Lay the prompt out with other fillers, positions or salts; only before vLLM has seated it.

        Args:
            keys: what the keys of its leading pages will be, where that is known.
        """
        if disposition == self.lies:
            return
        before, self.lies, self.own_point, self.relaid = self.lies, disposition, None, True
        if self.open_ended:
            self.request.max_tokens = self.answer - disposition.filling.count - disposition.frame.shift
        self.prompt = lay_out(
            self.request, self.user_prompt, disposition, self.filler, before, self.page_size, keys
        )
        self.segments = moved(self.user_segments, disposition.filling)

    def key_apart(self, page: int | None) -> None:
        """Salt the request's keys from the page of its first approximate token on; None: it has none of its own."""
        if self.own_point is not None:
            self.lies = replace(self.lies, points=self.lies.points[:-1])
            unkey(self.request, self.lies.points, self.own_point.page)
            self.own_point, self.relaid = None, True
        if page is not None:
            self.relaid = True
            self.own_point = Point.fresh(page, self.method)
            rekey(self.request, self.own_point)
            self.lies = replace(self.lies, points=(*self.lies.points, self.own_point))

    def chain(self) -> Chain:
        """How the pages of this context lie, for the agent's next round."""
        tokens = np.array(self.request.all_token_ids, dtype=np.int32)
        return Chain.of(tokens, self.lies, self.request.block_hashes, self.method)

    def report(self, page_size: int) -> MemberReport:
        """What was reused, and what not (`cached` counts whole pages)."""
        plan = self.plan if self.ready and self.reason is None else None
        cached = self.cached or 0
        earlier = [p for p in self.lies.points if p is not self.own_point]
        approximate = max(0, cached - earlier[0].page * page_size) if earlier else 0
        chosen = self.verdict.chosen if plan else 0
        reused, selected = (plan.reused - chosen, plan.selected + chosen) if plan else (0, 0)
        shared = len(plan.shared) * page_size if plan else 0
        to_user = self.lies.filling.to_user
        placement_reason = self.placement_reason or (None if shared else PlacementReason.NO_WHOLE_PAGE)
        return MemberReport(
            round_id=self.tag.round_id,
            agent_id=self.tag.agent_id,
            automatic=self.tag.automatic,
            group_size=self.group_size,
            role="member" if self.group_size > 1 else "solo",
            prompt_tokens=len(self.user_prompt),
            filler_tokens=self.lies.filling.count,
            skipped_positions=self.lies.frame.shift,
            cached_tokens=cached,
            approximate_cached_tokens=approximate,
            restored_tokens=min(cached, self.history.restored),
            reused_tokens=reused,
            shared_tokens=shared,
            recomputed_tokens=selected,
            checked_tokens=self.verdict.checked if plan else 0,
            fresh_tokens=len(self.prompt) - cached - reused - selected,
            matched=[(to_user(s.start), to_user(s.end)) for s in self.found or []] if plan else [],
            gather_ms=round(self.gathered_ms, 3),
            restore_ms=round(self.times[0], 3) if self.times else None,
            compute_ms=round(self.times[1], 3) if self.times else None,
            backend=self.backend.name if self.backend else None,
            fidelity=self.tag.fidelity,
            execution=self.tag.execution,
            placement=None if plan is None else "shared" if shared else "copy",
            placement_reason=placement_reason if plan else None,
            fallback_reason=self.reason,
        )
