"""Members before a master with placed regions, and where their runs of shared segments come to lie."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from tiny_rounds import FILLER, Block, Prompt, cut, key_of, private
from tokendance_engine.reuse.alignment import MIN_PAGES, Aligned, Aligner
from tokendance_engine.reuse.selection import Reused, reused
from tokendance_engine.segments.filling import UNFILLED, fill, moved
from tokendance_engine.segments.frame import IN_PLACE
from tokendance_engine.segments.transcript import Transcript

PAGE = 4
START = Aligned(UNFILLED, IN_PLACE)
BLOCKS = [tuple(range(100 * i + 100, 100 * i + 100 + n)) for i, n in enumerate([9, 15, 4, 22, 8])]


@dataclass(frozen=True)
class Round:
    """A master with placed regions, and members' prompts.

    Attributes:
        regions: the blocks of each region.
    """

    aligner: Aligner
    transcript: Transcript
    regions: list[list[Block]]
    prompts: list[Prompt]

    def found(self, prompt: Prompt, state: Aligned = START) -> list[Reused]:
        tokens, segments = cut(prompt)
        filled, at = fill(tokens, state.filling, FILLER), moved(segments, state.filling)
        return reused(at, self.transcript.match(filled, at))

    def align(self, prompt: Prompt, start: Aligned = START, cached: int = 0) -> Aligned:
        return self.aligner.align(self.found(prompt, start), start, cached, self.transcript)

    def wish(self, prompt: Prompt) -> int | None:
        start = self.aligner.start(self.found(prompt), START, 0, self.transcript)
        row = self.transcript.regions[self.transcript.placed]
        return None if start is None else self.aligner.wish(start, row)

    def in_place(self, prompt: Prompt, state: Aligned) -> list[bool]:
        """Of every region of which the member holds a run worth sharing: does that run lie as its rows lie?"""
        answers = []
        found = self.found(prompt, state)
        for number in range(len(self.regions)):
            run = longest_run(found, *self.transcript.region(number))
            if not run:
                continue
            index, row = np.array(run).T
            same = state.frame.at(index) == self.transcript.frame.at(row)
            answers.append(bool(same.all() and ((index - row) % PAGE == 0).all()))
        return answers


def longest_run(found: Sequence[Reused], first: int, last: int) -> list[tuple[int, int]]:
    """(index, row) of the longest uninterrupted run of a region; empty if it is not worth sharing."""
    pairs = [
        (index, row)
        for s in found
        if first <= s.row < last
        for index, row in zip(range(s.start, s.end), range(s.row, s.row + s.end - s.start), strict=True)
    ]
    breaks = [i for i in range(1, len(pairs)) if pairs[i] != (pairs[i - 1][0] + 1, pairs[i - 1][1] + 1)]
    runs = [pairs[a:b] for a, b in itertools.pairwise([0, *breaks, len(pairs)])]
    longest = max(runs, key=len)
    return longest if len(longest) >= MIN_PAGES * PAGE else []


def make_round(regions: list[list[Block]], prompts: list[Prompt], max_skipped: int = 1000) -> Round:
    """Regions opened and placed one after another, as the planner does."""
    made = Round(Aligner(PAGE, max_skipped), Transcript(np.full(8, 900, dtype=np.int32)), regions, prompts)
    transcript = made.transcript
    for region in regions:
        transcript.open_region(np.full(-transcript.rows % PAGE, FILLER, dtype=np.int32))
        for block in region:
            transcript.append(key_of(block), np.array(block, dtype=np.int32))
    while transcript.placed < len(regions):
        wishes = [w for w in map(made.wish, prompts) if w is not None]
        least = transcript.regions[transcript.placed] + transcript.frame.shift
        position = made.aligner.position(wishes, least)
        assert position >= least
        transcript.place(position)
    transcript.check()
    return made


@st.composite
def rounds(draw: st.DrawFn, shuffled: bool) -> Round:
    """Members with other private text before every region; some lack regions, some see them in another order."""
    count = draw(st.integers(1, 5))
    cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=2))) if count > 1 else []
    regions = [BLOCKS[a:b] for a, b in itertools.pairwise([0, *cuts, count])]
    prompts = []
    for member in range(draw(st.integers(1, 4))):
        order = [*range(len(regions))]
        if shuffled:
            order = draw(st.permutations(order))
        prompt, used = list[Block](), 0
        for number in order[: draw(st.integers(1, len(order)))]:
            own = draw(st.integers(0, 25))
            blocks = draw(st.permutations(regions[number])) if shuffled else regions[number]
            prompt += [private(member, used, own), *blocks]
            used += own
        prompts.append([*prompt, private(member, used, 3)])
    return make_round(regions, prompts, draw(st.sampled_from([0, 8, 1000])))
