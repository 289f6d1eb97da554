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

NEUTRAL = "This is a conversation between several people. What each of them said or did is recorded below."

_HEAD, _BRIDGE = 16, 64
"""Most tokens taken from the common start and from the common text before the shared region."""


def make_preamble(
    prompts: Sequence[Tokens], segments: Sequence[Sequence[Segment]], first: Sequence[int], neutral: Tokens
) -> Tokens:
    """The preamble of a new master.

    Args:
        prompts: token ids of each member. A single member has nothing in common with anybody, so only `neutral`
            is used.
        segments: their segments.
        first: where each member's first shared segment starts.
        neutral: token ids of `NEUTRAL`.

    Returns:
        int32 [n], n >= 1.
    """
    if len(prompts) < 2:
        return neutral.astype(np.int32)
    # What the master will hold as shared segments (these members' common start, which others lack) comes only once.
    shared = min(leading(segments), sum(s.end <= min(first) for s in segments[0]))
    start = segments[0][shared - 1].end if shared else 0
    bridge = _common_suffix([p[max(start, f - _BRIDGE) : f] for p, f in zip(prompts, first, strict=True)])
    if shared:
        return np.concatenate([prompts[0][:start], bridge]).astype(np.int32)
    head = _common_prefix([p[: min(_HEAD, f)] for p, f in zip(prompts, first, strict=True)])
    return np.concatenate([head, neutral, bridge]).astype(np.int32)


def _common_prefix(runs: Sequence[Tokens]) -> Tokens:
    n = min(map(len, runs))
    same = np.ones(n, dtype=bool)
    for run in runs[1:]:
        same &= run[:n] == runs[0][:n]
    return runs[0][: int(np.argmin(np.append(same, False)))]


def _common_suffix(runs: Sequence[Tokens]) -> Tokens:
    return _common_prefix([run[::-1] for run in runs])[::-1]
