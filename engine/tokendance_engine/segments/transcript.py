"""The shared transcript of a session: which segments its master holds, and at which rows.

A row is a token position of the master's own context. Rows below `preamble` belong to the text the shared segments
were computed after; they are never restored into a member.

In a transcript whose segments stand apart each of them is computed by itself, right after the preamble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import IN_PLACE, Frame
from tokendance_engine.segments.key import Segment, SegmentKey, Tokens

FILLER: SegmentKey = b""
"""The key of fillers: no segment has it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment inside the master: its tokens start at row `row`."""

    key: SegmentKey
    row: int
    tokens: Tokens


@dataclass(slots=True)
class Transcript:
    """Ordered shared segments after a preamble. Only ever appended to.

    Attributes:
        preamble: tokens of rows [0, len(preamble)).
        entries: segments in order, contiguous; those without a key are fillers.
        regions: rows at which regions start: what some member has something of its own in front of.
        frame: where the rows stand; a region may skip positions.
        placed: regions that have got their position.
        apart: page size if segments stand apart (preamble and segments then begin at pages), else 0.
    """

    preamble: Tokens
    entries: list[Entry] = field(default_factory=list)
    rows: int = 0
    regions: list[int] = field(default_factory=list)
    frame: Frame = IN_PLACE
    placed: int = 0
    apart: int = 0
    _by_key: dict[SegmentKey, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.apart and len(self.preamble) % self.apart:
            raise ValueError(f"a preamble of {len(self.preamble)} tokens does not fill pages of {self.apart}")
        self.rows = len(self.preamble) + sum(len(e.tokens) for e in self.entries)

    def __contains__(self, key: SegmentKey) -> bool:
        return key in self._by_key

    def append(self, key: SegmentKey, tokens: Tokens) -> Entry:
        """Add a segment after the last row (or at the next page, where segments stand apart)."""
        if self.apart:
            gap = -self.rows % self.apart
            if gap:
                self.entries.append(Entry(FILLER, self.rows, np.zeros(gap, dtype=np.int32)))
                self.rows += gap
            self.frame = Frame((*self.frame.steps, (self.rows, len(self.preamble) - self.rows)))
        entry = Entry(key, self.rows, tokens)
        self._by_key.setdefault(key, []).append(len(self.entries))
        self.entries.append(entry)
        self.rows += len(tokens)
        return entry

    def open_region(self, filler: Tokens) -> None:
        """Start a region at the next row, after fillers (int32 [n], n >= 0) that bring it to a page phase."""
        if len(filler):
            self.entries.append(Entry(FILLER, self.rows, filler))
            self.rows += len(filler)
        self.regions.append(self.rows)

    def region(self, number: int) -> tuple[int, int]:
        """Rows [start, end) of a region."""
        after = self.regions[number + 1] if number + 1 < len(self.regions) else self.rows
        return self.regions[number], after

    def place(self, position: int) -> None:
        """Say where the first region without a position starts; it skips the positions between.

        The preamble keeps its place at the start of the context, as members' histories do.

        Raises:
            ValueError: it would stand before the end of what precedes it.
        """
        row = self.regions[self.placed]
        self.frame = self.frame.stepped(row, position - row)
        self.placed += 1

    @property
    def positions(self) -> int:
        """Positions its rows need."""
        if self.apart:
            return len(self.preamble) + max((len(e.tokens) for e in self.entries), default=0)
        return self.rows + self.frame.shift

    def copy(self) -> Transcript:
        """An independent transcript with the same content."""
        same = replace(self, entries=list(self.entries), regions=list(self.regions))
        same._by_key = {key: list(at) for key, at in self._by_key.items()}
        return same

    def counts(self) -> Counter[SegmentKey]:
        """How often each segment occurs."""
        return Counter({key: len(at) for key, at in self._by_key.items()})

    def tokens(self, start: int = 0) -> Tokens:
        """Token ids of rows [start, rows)."""
        whole = np.concatenate([self.preamble, *(e.tokens for e in self.entries)]).astype(np.int32)
        return whole[start:]

    def filling(self) -> Filling:
        """Its fillers."""
        return Filling(tuple((e.row, len(e.tokens)) for e in self.entries if e.key == FILLER))

    def match(self, prompt: Tokens, segments: Sequence[Segment]) -> list[int | None]:
        """Master row of each segment of a prompt, or None.

        Repeated segments (the same label every round, two equal outputs) are aligned from the end, so that the
        newest occurrence in the prompt meets the newest in the transcript even if the prompt lost older rounds.
        Where segments stand apart, all occurrences are the same row.
        """
        left: dict[SegmentKey, list[int]] = {}
        found: list[int | None] = [None] * len(segments)
        for i in range(len(segments) - 1, -1, -1):
            segment = segments[i]
            if segment.key not in self._by_key:
                continue
            at = left.get(segment.key)
            if at is None:
                at = left[segment.key] = list(self._by_key[segment.key])
            if not at:
                continue
            entry = self.entries[at[-1] if self.apart else at.pop()]
            if entry.tokens.tobytes() == prompt[segment.start : segment.end].tobytes():
                found[i] = entry.row
        return found

    def check(self) -> None:
        """Raise AssertionError unless rows, entries and index agree (tests call this after every scenario)."""
        row = len(self.preamble)
        for i, entry in enumerate(self.entries):
            assert entry.row == row, f"entry {i} starts at row {entry.row}, expected {row}"
            assert entry.key == FILLER or i in self._by_key[entry.key]
            row += len(entry.tokens)
        assert row == self.rows
        assert sum(map(len, self._by_key.values())) == sum(e.key != FILLER for e in self.entries)
        assert sorted(set(self.regions)) == self.regions
        assert self.placed <= len(self.regions)
        if self.apart:
            starts = [e.row for e in self.entries if e.key != FILLER]
            assert all(row % self.apart == 0 for row in starts)
            assert [first for first, _ in self.frame.steps] == starts
        else:
            assert all(first in self.regions for first, _ in self.frame.steps)


def shared_order(
    prompts: Sequence[Sequence[Segment]], known: Counter[SegmentKey]
) -> list[tuple[int, Segment]]:
    """The segments a round shares, in canonical order, as (member, segment).

    Shared is what occurs in at least two members, or in one member and in the session's transcript (`known`).
    Leading segments that all members share are not listed (prefix caching already shares them), nor is any
    prompt's last segment (it ends in the template's answer marker and is always computed). The order is the first
    member's; segments only others have follow in the order they are met. A segment that occurs k times in some
    member is listed k times.
    """
    skip = leading(prompts)
    bodies = [p[skip:-1] for p in prompts]
    spread = Counter(key for body in bodies for key in {s.key for s in body})
    order: list[tuple[int, Segment]] = []
    have: Counter[SegmentKey] = Counter()
    for member, body in enumerate(bodies):
        seen: Counter[SegmentKey] = Counter()
        for segment in body:
            if spread[segment.key] < 2 and segment.key not in known:
                continue
            seen[segment.key] += 1
            if seen[segment.key] > have[segment.key]:
                have[segment.key] += 1
                order.append((member, segment))
    return order


def leading(prompts: Sequence[Sequence[Segment]]) -> int:
    """How many leading segments all (two or more) members have in common."""
    if len(prompts) < 2:
        return 0
    n = 0
    for column in zip(*(p[:-1] for p in prompts), strict=False):
        if any(s.key != column[0].key for s in column):
            break
        n += 1
    return n
