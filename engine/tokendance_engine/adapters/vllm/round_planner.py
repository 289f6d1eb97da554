"""From the members of a closed group to a master that serves them: what is shared, and is it worth it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokendance_sdk.protocol import FallbackReason

from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.alignment import Aligner
from tokendance_engine.reuse.preamble import make_preamble
from tokendance_engine.segments.key import Segment, SegmentKey, Tokens
from tokendance_engine.segments.transcript import Transcript, leading, shared_order


class RoundPlanner:
    """Decides, once per group, which master its members reuse.

    Args:
        families: live masters.
        settings: fidelity and thresholds.
        placement: lays members out.
        max_rows: the model's positions.
        neutral: token ids of the neutral preamble text.
    """

    def __init__(
        self,
        families: Families,
        settings: EngineConfig,
        placement: Placement,
        max_rows: int,
        neutral: Tokens,
    ) -> None:
        self._families = families
        self._settings = settings
        self._placement = placement
        self._max_rows = max_rows
        self._neutral = neutral

    def plan(self, members: Sequence[Member]) -> None:
        """Give every member its `found` segments and a pinned master, or a `reason`.

        Members must be of one family.
        """
        if not members:
            return
        outcome = self._outcome(members)
        family = self._families.get(members[0].family)
        for member in members:
            member.found = []
            if isinstance(outcome, FallbackReason):
                member.reason = outcome
                continue
            self._placement.lay_out(member, outcome)
            if not member.found:
                member.reason = FallbackReason.NO_SHARED_SEGMENTS
            elif family is not None and family.master is not None:
                member.master = family.master
                family.master.users += 1

    def _outcome(self, members: Sequence[Member]) -> Transcript | FallbackReason:
        family = self._families.get_or_make(members[0].family)
        now = family.master.transcript if family.master else None
        # One voice per agent: the children of `n > 1` and duplicates must not make its private text look shared.
        voices = list({m.tag.agent_id: m for m in members}.values())
        order = shared_order([m.segments for m in voices], now.counts() if now else Counter())
        alone = len(voices) == 1
        if not order:
            return FallbackReason.ALONE if alone else FallbackReason.NO_SHARED_SEGMENTS
        apart = voices[0].backend is not None and voices[0].backend.source == "alone"
        parts = _regions(order, [m.segments for m in voices])
        keys = [[(s.key, voices[i].prompt[s.start : s.end]) for i, s in part] for part in parts]
        if apart:
            keys = [list({key: (key, tokens) for part in keys for key, tokens in part}.values())]
        wanted = Counter(key for part in keys for key, _ in part)
        extends = now is not None and now.counts() <= wanted
        new = _beyond(keys, now.counts()) if now is not None else keys
        if now is not None and (alone or not any(new)):
            return now
        outcome: Transcript | FallbackReason = FallbackReason.NO_GAIN
        for share in (True, False) if self._placement.shares(members) else (False,):
            # Fillers and a preamble of whole pages can cost a small round what it gains: then its members copy.
            longer = now.copy() if now is not None and extends else None
            transcript = longer or self._new(voices, order, share, apart)
            self._placement.extend(transcript, members if share else [], new if extends else keys)
            outcome = self._worth(members, transcript, now.rows if now is not None and extends else 0)
            if isinstance(outcome, Transcript):
                break
        if isinstance(outcome, FallbackReason):
            return outcome
        if self._families.grow(family, outcome, extends) is None:
            return FallbackReason.NOT_ENOUGH_PAGES
        return outcome

    def _worth(
        self, members: Sequence[Member], transcript: Transcript, have: int
    ) -> Transcript | FallbackReason:
        """The transcript, if the model has room for it and members save more than its rows beyond `have` cost."""
        if transcript.positions > self._max_rows:
            return FallbackReason.MASTER_TOO_LONG
        reference = any(m.backend is not None and m.backend.reference for m in members)
        if not reference and self._gain(members, transcript, have) <= 0:
            return FallbackReason.NO_GAIN
        return transcript

    def _new(
        self, members: Sequence[Member], order: Sequence[tuple[int, Segment]], share: bool, apart: bool
    ) -> Transcript:
        if not apart:
            return Transcript(self._preamble(members, order, share))
        size = self._placement.page_size
        return Transcript(make_preamble([], [], [], self._neutral, size), apart=size)

    def _preamble(
        self, members: Sequence[Member], order: Sequence[tuple[int, Segment]], share: bool
    ) -> Tokens:
        shared = {s.key for _, s in order}
        skip = leading([m.segments for m in members])
        takes_part = [m for m in members if any(s.key in shared for s in m.segments[skip:-1])]
        first = [next(s.start for s in m.segments[skip:-1] if s.key in shared) for m in takes_part]
        prompts, segments = [m.prompt for m in takes_part], [m.segments for m in takes_part]
        if not share:
            return make_preamble(prompts, segments, first, self._neutral)
        size = self._placement.page_size
        phase = Aligner(size, 0).gap([(at, 0) for at in first], 0)
        return make_preamble(prompts, segments, first, self._neutral, size, phase)

    def _gain(self, members: Sequence[Member], transcript: Transcript, have: int) -> int:
        """Tokens members would not compute, minus rows the master must."""
        saved = sum(self._placement.estimate(m, transcript).reused for m in members)
        return saved - (transcript.rows - have)


def _regions(
    order: Sequence[tuple[int, Segment]], prompts: Sequence[Sequence[Segment]]
) -> list[list[tuple[int, Segment]]]:
    """The shared segments, cut where a member has something of its own between two of them."""
    parts: list[list[tuple[int, Segment]]] = []
    for member, segment in order:
        last = parts[-1][-1] if parts else None
        if last is None or (last[0] == member and last[1].end != segment.start):
            parts.append([])
        parts[-1].append((member, segment))
    return parts


def _beyond(
    parts: Sequence[Sequence[tuple[SegmentKey, Tokens]]], have: Counter[SegmentKey]
) -> list[list[tuple[SegmentKey, Tokens]]]:
    """Occurrences the transcript does not hold yet: of each key, those after the first `have[key]`."""
    seen: Counter[SegmentKey] = Counter()
    new: list[list[tuple[SegmentKey, Tokens]]] = []
    for part in parts:
        new.append([])
        for key, tokens in part:
            seen[key] += 1
            if seen[key] > have[key]:
                new[-1].append((key, tokens))
    return [part for part in new if part]
