"""The paper's layout, for comparison: one member's dense cache is the master, the others are diffs against it.

Segments are aligned by content, so other orders and history lengths still match. V of a reference is the member's own
bit for bit; K is within rounding where its position differs (it was rotated there from one position, and is rotated
here from another). Nothing else in this package accepts a K that is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import BlockIndex, Flags, Index
from tokendance_engine.storage.capture import different
from tokendance_engine.storage.errors import ShapeError
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.references import References
from tokendance_engine.storage.restore import Remake
from tokendance_engine.storage.rows import Rows, Segment
from tokendance_engine.storage.similarity import align

ROUNDINGS = 2.0
"""Machine epsilons of a key's norm by which a reference's K may be off: both copies and the rotation were rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One member's cache as it is: token = position.

    Attributes:
        tokens: int32 [n].
        rows: its KV, n rows.
    """

    tokens: Tokens
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class MemberMaster:
    """A family in the paper's layout.

    Attributes:
        elected: which member's cache is the master.
        master: that cache.
        mirrors: all members in order; the elected one's references all of `master`.
    """

    elected: int
    master: Segment
    mirrors: tuple[Mirror, ...]


def encode(members: Sequence[Dense], remake: Remake, dense_above: float = 0.96) -> MemberMaster:
    """Store a group of dense caches.

    Args:
        remake: rotates keys from one position to another.
        dense_above: members with a larger share of stored rows are stored whole.

    Raises:
        ShapeError: no members.
    """
    if not members:
        raise ShapeError("no members; a family needs at least one")
    elected = elect(members, remake)
    chosen = members[elected]
    master = Segment(chosen.tokens, 0, b"", chosen.rows)
    mirrors = (
        _mirror(m, master, np.arange(len(m.tokens)) if i == elected else None, remake, dense_above)
        for i, m in enumerate(members)
    )
    return MemberMaster(elected, master, tuple(mirrors))


def elect(members: Sequence[Dense], remake: Remake) -> int:
    """The member from whom the others deviate least: the fewest rows to store, its own included.

    Judged by the last layer: what differs anywhere differs there, since it is made of all layers below.
    """
    last = members[0].rows.kv.shape[1] - 1
    costs = [
        len(one.tokens)
        + sum(len(other.tokens) - int(_agreeing(other, one, [last], remake)[1].sum()) for other in members)
        for one in members
    ]
    return int(np.argmin(costs))


def _agreeing(member: Dense, master: Dense, layers: Sequence[int], remake: Remake) -> tuple[Index, Flags]:
    """Master row of each token (or -1), and whether both hold the same KV in these layers."""
    row_of = align(member.tokens, master.tokens)
    return row_of, _same(member, master.rows, row_of, layers, remake)


def _same(member: Dense, source: Rows, row_of: Index, layers: Sequence[int], remake: Remake) -> Flags:
    tokens = np.flatnonzero(row_of >= 0)
    rows, here = torch.from_numpy(row_of[tokens]), torch.from_numpy(tokens)
    good = torch.ones(len(tokens), dtype=torch.bool)
    for layer in layers if len(tokens) else ():
        old_key, old_value = (plane.index_select(0, rows) for plane in source.layer(layer))
        key, value = (plane.index_select(0, here) for plane in member.rows.layer(layer))
        made = remake(layer, old_key, row_of[tokens], tokens)
        good &= ~different(old_value, value)
        good &= torch.where(rows == here, ~different(made, key), _close(made, key))
    flags = np.zeros(len(row_of), dtype=bool)
    flags[tokens[good.numpy()]] = True
    return flags


def _close(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows of keys that differ by rounding alone, bool [n]."""
    allowed = ROUNDINGS * torch.finfo(a.dtype).eps * b.float().norm(dim=-1, keepdim=True)
    close: torch.Tensor = ((a.float() - b.float()).abs() <= allowed).flatten(1).all(1)
    return close


def _mirror(
    member: Dense, master: Segment, whole: Index | None, remake: Remake, dense_above: float
) -> Mirror:
    size = len(member.tokens)
    if whole is None:
        row_of = align(member.tokens, master.tokens)
        same = _same(member, master.rows, row_of, range(master.rows.kv.shape[1]), remake)
    else:
        row_of, same = whole, np.ones(size, dtype=bool)
    if (~same).sum() > dense_above * size:
        same[:] = False
    shared, own = np.flatnonzero(same), np.flatnonzero(~same)
    references = References.of(shared, np.zeros_like(shared), row_of[shared], [master])
    parts = (Rows(member.rows.kv[:, :, torch.from_numpy(own)].contiguous()),) if len(own) else ()
    return Mirror(member.tokens, Positions.plain(), references, BlockIndex.of(~same), parts)
