"""Finding the same text elsewhere, by content alone: other orders and other history lengths still match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import BLOCK, Index
from tokendance_engine.storage.references import References
from tokendance_engine.storage.rows import Segment

GRAM = BLOCK
"""Shortest run of tokens that is looked for: one storage block."""

_WEIGHTS = np.random.default_rng(0x70D).integers(1, 2**63, GRAM, dtype=np.uint64) | np.uint64(1)


def grams(tokens: Tokens) -> npt.NDArray[np.uint64]:
    """A hash of every run of `GRAM` tokens, uint64 [n - GRAM + 1] (empty for shorter texts)."""
    if len(tokens) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64), GRAM)
    hashes: npt.NDArray[np.uint64] = (windows * _WEIGHTS).sum(axis=1, dtype=np.uint64)
    return hashes


def similarity(tokens: Tokens, source: Tokens) -> float:
    """Share of the tokens' runs that occur in the source, 0 to 1."""
    mine = grams(tokens)
    return float(np.isin(mine, grams(source)).mean()) if len(mine) else 0.0


def align(tokens: Tokens, source: Tokens) -> Index:
    """For each token the source row that holds it within a common run of at least `GRAM` tokens.

    A run that occurs more than once in the source is taken where its neighbour was found; failing that, at its first
    place. Ids are compared, so a hash collision matches nothing.

    Returns:
        Source rows, or -1, int64 [n].
    """
    row_of = np.full(len(tokens), -1, dtype=np.int64)
    mine, theirs = grams(tokens), grams(source)
    if not len(mine) or not len(theirs):
        return row_of
    order = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs[order], mine, side=side) for side in ("left", "right"))
    found = high > low
    row = np.where(found, order[np.minimum(low, len(order) - 1)], -1)
    at = np.arange(len(mine))
    for way in (1, -1):
        row = _follow(row[::way], (high - low)[::way] == 1, found[::way], at[::way], mine[::way], theirs)[
            ::way
        ]
    start = np.flatnonzero(found)
    for k in range(GRAM - 1, -1, -1):
        row_of[start + k] = row[start] + k
    hit = row_of >= 0
    row_of[hit] = np.where(source[row_of[hit]] == tokens[hit], row_of[hit], -1)
    return row_of


def _follow(
    row: Index,
    sure: npt.NDArray[np.bool_],
    found: npt.NDArray[np.bool_],
    at: Index,
    mine: npt.NDArray[np.uint64],
    theirs: npt.NDArray[np.uint64],
) -> Index:
    """Move ambiguous matches onto the diagonal of the last sure one before them, where that matches too."""
    last = np.maximum.accumulate(np.where(sure, np.arange(len(row)), -1))
    wanted = row[np.maximum(last, 0)] + at - at[np.maximum(last, 0)]
    inside = found & ~sure & (last >= 0) & (wanted >= 0) & (wanted < len(theirs))
    fits = inside & (theirs[np.clip(wanted, 0, len(theirs) - 1)] == mine)
    return np.where(fits, wanted, row)


def nearest(tokens: Tokens, texts: Iterable[Sequence[Segment]], least: float = 0.05) -> References:
    """References into resident segments, those of the most similar text first; the others fill what it leaves.

    Args:
        texts: each is segments whose tokens follow each other (a master), so that a run may cross from one to the
            next.
        least: texts with a smaller similarity are not looked at. It is the larger of the two shares, what of the
            tokens is in the text and what of the text is in the tokens: a short text may lie in a long one.
    """
    whole = [(np.concatenate([s.tokens for s in text]), text) for text in texts if text]
    scores = [max(similarity(tokens, ids), similarity(ids, tokens)) for ids, _ in whole]
    ranked = sorted(range(len(whole)), key=lambda i: -scores[i])
    segments: list[Segment] = []
    which = np.full(len(tokens), -1, dtype=np.int64)
    rows = np.full(len(tokens), -1, dtype=np.int64)
    for ids, text in (whole[i] for i in ranked if scores[i] >= least):
        row = align(tokens, ids)
        free = np.flatnonzero((row >= 0) & (which < 0))
        starts = np.cumsum([0, *(len(segment) for segment in text)])
        mine = np.searchsorted(starts, row[free], side="right") - 1
        which[free], rows[free] = mine + len(segments), row[free] - starts[mine]
        segments.extend(text)
    hit = np.flatnonzero(which >= 0)
    return References.of(hit, which[hit], rows[hit], segments)
