"""What goes in and out of the store."""

from __future__ import annotations

from dataclasses import dataclass

from tokendance_engine.storage.blocks import Index
from tokendance_engine.storage.positions import Positions


@dataclass(frozen=True, slots=True)
class Taken:
    """What a plan took from a master.

    Attributes:
        master_id: the engine's name for the master; rows of another one are never referenced instead.
        spans: int64 [m, 3]: master row, token of the member, length; disjoint in tokens.
    """

    master_id: int
    spans: Index


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a capture did.

    Attributes:
        tokens: tokens the mirror holds now.
        read: rows read from pages and stored by this capture.
        referenced: tokens of the whole mirror that are references.
        nbytes: bytes of the mirror, without the segments it references.
    """

    tokens: int
    read: int
    referenced: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the store holds of a prompt.

    Attributes:
        tokens: leading tokens that can be restored; the prompt's ids were compared.
        approximate_from: first of them whose KV is approximate, or None.
        positions: where they stand.
    """

    tokens: int
    approximate_from: int | None
    positions: Positions
