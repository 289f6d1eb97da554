"""What a master's shared segments are computed after.

Shared text must not stand at position 0 (the first tokens of a context are attention sinks), and nobody's private
text may be in it. So a master starts with the leading segments all members share; where there are none, with what all
prompts have in common at their start, a neutral sentence, and the template text right before the first shared segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokendance_engine.segments.key import Segment, Tokens
from tokendance_engine.segments.transcript import leading

NEUTRAL = (
    "This is a conversation between several people. What each of them said or did is recorded below. They know each "
    "other well, and each of them has a view of the matter. It is an ordinary day, and nobody is in a hurry. People "
    "speak one after another, listen to what was said before, and come back to it when they see it in another way. "
    "Some of them ask questions, some give examples, and some sum up what they have heard. Nothing in this record was "
    "left out or changed. Where someone refers to an earlier remark, that remark can be found further up. The names "
    "stand before what each person said. Read it with care, from the first line to the last."
)

_HEAD, _BRIDGE = 16, 64
"""Most tokens taken from the common start and from the common text before the shared region."""

_SENTENCE = 20
"""Fewest tokens of the neutral text where members have no leading segments in common."""


def make_preamble(
    prompts: Sequence[Tokens],
    segments: Sequence[Sequence[Segment]],
    first: Sequence[int],
    neutral: Tokens,
    page_size: int = 1,
    phase: int = 0,
) -> Tokens:
    """The preamble of a new master.

    Args:
        prompts: token ids of each member. A single member has nothing in common with anybody, so only `neutral`
            is used.
        segments: their segments.
        first: where each member's first shared segment starts.
        neutral: token ids of `NEUTRAL`.
        page_size, phase: after the preamble the next token stands `phase` tokens into a page of `page_size`.

    Returns:
        int32 [n], n >= 1.
    """
    if len(prompts) < 2:
        return _joined([], neutral, [], page_size, phase, _SENTENCE)
    # What the master will hold as shared segments (these members' common start, which others lack) comes only once.
    shared = min(leading(segments), sum(s.end <= min(first) for s in segments[0]))
    start = segments[0][shared - 1].end if shared else 0
    bridge = _common_suffix([p[max(start, f - _BRIDGE) : f] for p, f in zip(prompts, first, strict=True)])
    if shared:
        return _joined(prompts[0][:start], neutral, bridge, page_size, phase, 0)
    head = _common_prefix([p[: min(_HEAD, f)] for p, f in zip(prompts, first, strict=True)])
    return _joined(head, neutral, bridge, page_size, phase, _SENTENCE)


def _joined(
    head: Sequence[int] | Tokens,
    neutral: Tokens,
    bridge: Sequence[int] | Tokens,
    page_size: int,
    phase: int,
    least: int,
) -> Tokens:
    """Head, at least `least` tokens of the neutral text (again and again if need be), bridge: up to the phase."""
    ends = len(head) + len(bridge)
    n = least + (phase - ends - least) % page_size
    return np.concatenate([head, np.resize(neutral, n if len(neutral) else 0), bridge]).astype(np.int32)


def _common_prefix(runs: Sequence[Tokens]) -> Tokens:
    n = min(map(len, runs))
    same = np.ones(n, dtype=bool)
    for run in runs[1:]:
        same &= run[:n] == runs[0][:n]
    return runs[0][: int(np.argmin(np.append(same, False)))]


def _common_suffix(runs: Sequence[Tokens]) -> Tokens:
    return _common_prefix([run[::-1] for run in runs])[::-1]
