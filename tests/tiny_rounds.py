"""Rounds of small token prompts, built block by block, and hypothesis strategies that draw them.

Tokens below 1,000 are everybody's; member m's private vocabulary is [1000 * (m + 1), 1000 * (m + 2)).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st
from tokendance_engine.segments.key import Segment, Tokens, segment_key, split

Block = tuple[int, ...]
Prompt = list[Block]

NEUTRAL = np.arange(900, 920, dtype=np.int32)
"""Stands for the tokenized neutral text: just as long as it must at least be."""

FILLER = 999
"""Stands for a newline."""


def cut(blocks: Iterable[Sequence[int]]) -> tuple[Tokens, list[Segment]]:
    """A prompt of these blocks: its tokens and its segments (empty blocks give none)."""
    blocks = list(blocks)
    tokens = np.array([token for block in blocks for token in block], dtype=np.int32)
    return tokens, split(tokens, list(itertools.accumulate(map(len, blocks)))[:-1])


def key_of(block: Sequence[int]) -> bytes:
    return segment_key(np.array(block, dtype=np.int32))


def private(member: int, start: int, size: int) -> Block:
    """A block only this member has."""
    return tuple(1000 * (member + 1) + start + i for i in range(size))


def owner(token: int) -> int | None:
    """The member whose private token this is."""
    return token // 1000 - 1 if token >= 1000 else None


@st.composite
def rounds(draw: st.DrawFn, least: int = 2, most: int = 8) -> list[Prompt]:
    """Prompts of a round: private text between shared blocks, another order and choice for every member.

    Shared blocks may be equal to one another or repeat; all members end in the same answer marker or in private text.
    """
    word = st.integers(0, 5)
    pool = draw(st.lists(st.lists(word, min_size=1, max_size=6).map(tuple), min_size=1, max_size=5))
    lead = draw(st.lists(st.sampled_from(pool), max_size=2))
    marker: list[Block] = draw(st.sampled_from([[], [(77, 78)]]))
    prompts = []
    for member in range(draw(st.integers(least, most))):
        prompt, used = list(lead), 0
        for block in draw(st.lists(st.sampled_from(pool), max_size=6)):
            size = draw(st.integers(0, 4))
            prompt += [private(member, used, size), block]
            used += size
        prompts.append([*prompt, private(member, used, 3), *marker])
    return prompts
