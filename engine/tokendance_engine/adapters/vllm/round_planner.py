"""From the members of a closed group to a master that serves them: what is shared, and is it worth it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokendance_sdk.protocol import FallbackReason

from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.plan import make_plan
from tokendance_engine.reuse.preamble import make_preamble
from tokendance_engine.reuse.selection import reused
from tokendance_engine.segments.key import Segment, SegmentKey, Tokens
from tokendance_engine.segments.transcript import Transcript, leading, shared_order


class RoundPlanner:
    """Decides, once per group, which master its members restore from.

    Args:
        families: live masters.
        settings: fidelity and thresholds.
        max_rows: the model's positions.
        neutral: token ids of the neutral preamble sentence.
    """

    def __init__(self, families: Families, settings: EngineConfig, max_rows: int, neutral: Tokens) -> None:
        self._families = families
        self._settings = settings
        self._max_rows = max_rows
        self._neutral = neutral

    def plan(self, members: Sequence[Member]) -> None:
        """Give every member its `found` segments and a pinned master, or a `reason`.

        Members must be of one family.
        """
        if not members:
            return
        outcome = self._outcome(members)
        for member in members:
            member.found = []
            if isinstance(outcome, FallbackReason):
                member.reason = outcome
            else:
                member.found = reused(member.segments, outcome.match(member.prompt, member.segments))
                if not member.found:
                    member.reason = FallbackReason.NO_SHARED_SEGMENTS
        family = self._families.get(members[0].family)
        if isinstance(outcome, FallbackReason) or family is None or family.master is None:
            return
        for member in members:
            if member.reason is None:
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
        keys: list[tuple[SegmentKey, Tokens]] = [(s.key, voices[i].prompt[s.start : s.end]) for i, s in order]
        wanted = Counter(key for key, _ in keys)
        extends = now is not None and now.counts() <= wanted
        new = _beyond(keys, now.counts()) if now is not None else keys
        if now is not None and (alone or not new):
            return now
        if now is not None and extends:
            transcript = now.extended(new)
        else:
            transcript = Transcript(self._preamble(voices, order)).extended(keys)
        if transcript.rows > self._max_rows:
            return FallbackReason.MASTER_TOO_LONG
        reference = any(m.backend is not None and m.backend.reference for m in members)
        have = now.rows if now is not None and extends else 0
        if not reference and self._gain(members, transcript, have) <= 0:
            return FallbackReason.NO_GAIN
        if self._families.grow(family, transcript, extends) is None:
            return FallbackReason.NOT_ENOUGH_PAGES
        return transcript

    def _preamble(self, members: Sequence[Member], order: Sequence[tuple[int, Segment]]) -> Tokens:
        shared = {s.key for _, s in order}
        skip = leading([m.segments for m in members])
        takes_part = [m for m in members if any(s.key in shared for s in m.segments[skip:-1])]
        first = [next(s.start for s in m.segments[skip:-1] if s.key in shared) for m in takes_part]
        return make_preamble(
            [m.prompt for m in takes_part], [m.segments for m in takes_part], first, self._neutral
        )

    def _gain(self, members: Sequence[Member], transcript: Transcript, have: int) -> int:
        """Tokens members would not compute, minus rows the master must."""
        saved = 0
        for member in members:
            assert member.backend is not None
            found = reused(member.segments, transcript.match(member.prompt, member.segments))
            plan = make_plan(
                len(member.prompt), member.cached or 0, found, member.backend, self._settings.tail_tokens
            )
            saved += plan.reused
        return saved - (transcript.rows - have)


def _beyond(
    keys: Sequence[tuple[SegmentKey, Tokens]], have: Counter[SegmentKey]
) -> list[tuple[SegmentKey, Tokens]]:
    """Occurrences the transcript does not hold yet: of each key, those after the first `have[key]`."""
    seen: Counter[SegmentKey] = Counter()
    new = []
    for key, tokens in keys:
        seen[key] += 1
        if seen[key] > have[key]:
            new.append((key, tokens))
    return new
