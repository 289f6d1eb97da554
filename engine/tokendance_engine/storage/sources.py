"""What a member's new tokens may reference: its plan's master, text found by content, and the group's common start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.capture import Content, confirmed
from tokendance_engine.storage.family import Family
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.restore import Remake
from tokendance_engine.storage.rows import ReadRows, Segment, read_rows, same_bits
from tokendance_engine.storage.similarity import nearest

COMMON = b"common start"
"""Context of segments that were not computed for a master: the leading tokens that several members' pages share."""


def content_of(
    layout: Layout,
    family: Family,
    previous: Mirror | None,
    tokens: Tokens,
    taken: Taken | None,
    read: ReadRows,
    remake: Remake | None,
    same: int,
    positions: Positions,
) -> Content:
    """What a member's pages hold, with every reference that can be had; arguments as `Store.put_mirror` has them."""
    references = References.none()
    if taken is not None:
        references = taken_from(family, taken, len(tokens))
    elif remake is not None:
        references = alike(family, tokens)
    content = Content(tokens, references, positions, unchanged(previous, tokens, positions, same))
    if remake is None:
        return content
    return replace(content, references=confirmed(layout, content, read, remake))


def taken_from(family: Family, taken: Taken, size: int) -> References:
    """What a plan took from the family's master; nothing if the store holds another master than that."""
    if family.master is None or family.master.id != taken.master_id:
        return References.none()
    return family.master.locate(taken.spans, size)


def alike(family: Family, tokens: Tokens) -> References:
    """What equals the family's text, by content alone; whether the KV is the same must be checked."""
    return nearest(tokens, family.texts())


def common_start(layout: Layout, family: Family, tokens: Tokens, read: ReadRows) -> Segment:
    """A segment for leading tokens that several members share: one that holds these very bytes, or a new one.

    Args:
        tokens: the leading tokens, int32 [n], at positions 0 to n - 1.
    """
    made = Segment(tokens.copy(), 0, COMMON, read_rows(layout, read, np.arange(len(tokens))))
    for other in family.segments():
        if (
            other.context == COMMON
            and np.array_equal(other.tokens, made.tokens)
            and same_bits(other.rows, made.rows)
        ):
            return other
    return made


def starting_with(segment: Segment, later: References) -> References:
    """References to all of a segment from token 0 on, then those of later tokens."""
    rows = np.arange(len(segment))
    size = max(len(segment), int(later.runs[:, :2].sum(axis=1).max(initial=0)))
    first = References.of(rows, np.zeros_like(rows), rows, [segment])
    return first.then(later.keep(np.arange(size) >= len(segment)))


def unchanged(previous: Mirror | None, tokens: Tokens, positions: Positions, same: int) -> int:
    """How many of `same` leading tokens the previous mirror holds, with these ids and at these positions."""
    if previous is None:
        return 0
    at = np.arange(min(same, previous.matching(tokens)))
    moved = np.flatnonzero(previous.positions.at(at) != positions.at(at))
    return int(moved[0]) if len(moved) else len(at)
