"""Lay a round's members out: share the master's pages where positions and page phase can be made equal, or copy.

Placement `shared` costs a member fillers and skipped positions (see `reuse.alignment`); placement `copy` costs pages
and a restore. Both are decided region by region, and in the end page by page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokendance_sdk.protocol import PlacementReason

from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.rekey import Disposition
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.alignment import Aligned, Aligner
from tokendance_engine.reuse.backends import Backend
from tokendance_engine.reuse.plan import Context, Plan, make_plan
from tokendance_engine.reuse.selection import Reused, reused
from tokendance_engine.segments.filling import fill, moved
from tokendance_engine.segments.key import Segment, SegmentKey, Tokens
from tokendance_engine.segments.transcript import Transcript

Keyed = tuple[SegmentKey, Tokens]


@dataclass(slots=True)
class Placement:
    """How members of this engine are laid out.

    Attributes:
        settings: thresholds.
        page_size: tokens per page.
        max_tokens: longest context vLLM serves, fillers included.
        max_positions: positions the model has.
        filler: token id of fillers.
        unsupported: why positions cannot be shifted in this engine, or None.
    """

    settings: EngineConfig
    page_size: int
    max_tokens: int
    max_positions: int
    filler: int
    unsupported: PlacementReason | None = None

    def shares(self, members: Sequence[Member]) -> bool:
        """Whether any of them may share pages at all."""
        return any(self.refusal(m) is None for m in members)

    def refusal(self, member: Member) -> PlacementReason | None:
        """Why a member may not share pages, whatever its round looks like."""
        asked = member.tag.placement or self.settings.placement
        if asked == "copy":
            return PlacementReason.COPY_REQUESTED
        if member.backend is not None and member.backend.copies:
            return PlacementReason.REFERENCE_BACKEND
        return self.unsupported

    def extend(
        self, transcript: Transcript, members: Sequence[Member], parts: Sequence[Sequence[Keyed]]
    ) -> None:
        """Append segments to a transcript; where somebody may share, as regions with a position each."""
        able = [m for m in members if self.refusal(m) is None]
        for part in parts:
            if able:
                trial = transcript.copy()
                _append_region(trial, part, ())
                starts = [s for m in able if (s := self._start(m, trial)) is not None]
                gap = self._aligner().gap(starts, transcript.rows)
                row = _append_region(transcript, part, [self.filler] * gap)
                wishes = [self._aligner().wish(s, row) for s in starts]
                transcript.place(self._aligner().position(wishes, row + transcript.frame.shift))
            else:
                _append(transcript, part)

    def lay_out(self, member: Member, transcript: Transcript) -> None:
        """Give a member its fillers, positions and `found` segments; what is cached of it keeps its own."""
        lies, member.placement_reason = self._choose(member, transcript)
        member.lie(lies)
        self.find(member, transcript)

    def find(self, member: Member, transcript: Transcript) -> None:
        """Look a member's segments up where they lie now."""
        member.found = _found(member.prompt, member.segments, transcript)

    def plan(self, member: Member, transcript: Transcript) -> Plan:
        """The plan of a member that was laid out."""
        return self._plan(member, member.lies, member.found or [], transcript)

    def estimate(self, member: Member, transcript: Transcript) -> Plan:
        """The plan a member would get; changes nothing."""
        lies, _ = self._choose(member, transcript)
        return self._plan(member, lies, self._match(member, lies, transcript), transcript)

    def _plan(
        self, member: Member, lies: Disposition, found: Sequence[Reused], transcript: Transcript
    ) -> Plan:
        backend = self._limited(member, found)
        context = Context(
            len(member.user_prompt) + lies.filling.count,
            member.cached or 0,
            self.page_size,
            lies.frame,
            transcript.frame,
            self.refusal(member) is None,
            filling=lies.filling,
        )
        return make_plan(context, found, backend, self.settings.tail_tokens)

    def _limited(self, member: Member, found: Sequence[Reused]) -> Backend:
        """The member's backend, with less to recompute in a round so large that this would outweigh the master.

        What a request asks for in so many words it gets.
        """
        assert member.backend is not None
        if member.tag.options:
            return member.backend
        new = [s for s in found if s.end > (member.cached or 0)]
        tokens = sum(s.end - s.start for s in new)
        return member.backend.within(new, int(self.settings.recompute_limit * tokens / member.group_size))

    def _choose(self, member: Member, transcript: Transcript) -> tuple[Disposition, PlacementReason | None]:
        start = self._cached_part(member)
        refusal = self.refusal(member)
        if refusal is not None or not transcript.regions:
            return start, refusal
        state = self._aligner(member).align(
            self._match(member, start, transcript),
            Aligned(start.filling, start.frame),
            member.cached or 0,
            transcript,
        )
        lies = Disposition(state.filling, state.frame, start.points)
        if not self.fits(member, lies):
            return start, PlacementReason.NOT_ENOUGH_POSITIONS
        return lies, None if state.reason is None else PlacementReason(state.reason)

    def fits(self, member: Member, lies: Disposition) -> bool:
        """Whether the model has room for a member's fillers and skipped positions, its answer included."""
        extra = lies.filling.count + lies.frame.shift
        if member.open_ended:  # its answer just ends earlier
            return extra <= member.answer // 2
        length = len(member.user_prompt) + lies.filling.count + member.answer
        return length <= self.max_tokens and length + lies.frame.shift <= self.max_positions

    def _start(self, member: Member, transcript: Transcript) -> tuple[int, int] | None:
        start = self._cached_part(member)
        found = self._match(member, start, transcript)
        state = Aligned(start.filling, start.frame)
        return self._aligner(member).start(found, state, member.cached or 0, transcript)

    def _aligner(self, member: Member | None = None) -> Aligner:
        forced = member is not None and member.tag.placement == "shared"
        return Aligner(self.page_size, self.max_positions if forced else self.settings.max_skipped_positions)

    def _cached_part(self, member: Member) -> Disposition:
        return member.earlier.before(member.cached or 0, self.page_size)

    def _match(self, member: Member, lies: Disposition, transcript: Transcript) -> list[Reused]:
        prompt = fill(member.user_prompt, lies.filling, self.filler)
        return _found(prompt, moved(member.user_segments, lies.filling), transcript)


def _found(prompt: Tokens, segments: Sequence[Segment], transcript: Transcript) -> list[Reused]:
    return reused(segments, transcript.match(prompt, segments))


def _append_region(transcript: Transcript, part: Sequence[Keyed], fillers: Sequence[int]) -> int:
    """Append segments as a region; its first row."""
    transcript.open_region(np.array(fillers, dtype=np.int32))
    row = transcript.rows
    _append(transcript, part)
    return row


def _append(transcript: Transcript, part: Sequence[Keyed]) -> None:
    for key, tokens in part:
        transcript.append(key, tokens)
