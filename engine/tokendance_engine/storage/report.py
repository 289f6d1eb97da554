"""What is stored, against what dense caches would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokendance_engine.storage.blocks import BLOCK
from tokendance_engine.storage.family import Family
from tokendance_engine.storage.keys import FamilyKey
from tokendance_engine.storage.layout import Layout
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.pool import PoolCounts
from tokendance_engine.storage.spill import SpillCounts


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """One mirror.

    Attributes:
        tokens: tokens it holds; own: those stored as rows.
        dense_bytes: a dense cache of them, token ids included.
        stored_bytes: rows, index, references and token ids; not the segments.
        blocks: storage blocks its tokens fill; changed: those with at least one stored row.
        per_block: how many of the changed blocks hold 1, 2, ... 16 stored rows.
    """

    tokens: int
    own: int
    dense_bytes: int
    stored_bytes: int
    blocks: int
    changed: int
    per_block: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Dense over stored bytes."""
        return self.dense_bytes / max(1, self.stored_bytes)


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """One family. `segment_bytes` and `own_bytes` (rows of own tokens) are parts of what `stored_bytes` counts."""

    mirrors: Mapping[str, MirrorReport]
    master_rows: int
    segment_bytes: int
    own_bytes: int

    @property
    def dense_bytes(self) -> int:
        """What dense caches of all members would take."""
        return sum(mirror.dense_bytes for mirror in self.mirrors.values())

    @property
    def stored_bytes(self) -> int:
        """Everything, indexes included."""
        return (
            4 * self.master_rows
            + self.segment_bytes
            + sum(mirror.stored_bytes for mirror in self.mirrors.values())
        )

    @property
    def ratio(self) -> float:
        """Dense over stored bytes."""
        return self.dense_bytes / max(1, self.stored_bytes)

    @property
    def own_share(self) -> float:
        """Own tokens' share of all members' tokens."""
        tokens = sum(mirror.tokens for mirror in self.mirrors.values())
        return sum(mirror.own for mirror in self.mirrors.values()) / max(1, tokens)

    @property
    def bound(self) -> float:
        """Ratio that the own share allows: N / (1 + (N - 1) u)."""
        return len(self.mirrors) / (1 + (len(self.mirrors) - 1) * self.own_share) if self.mirrors else 1.0

    @property
    def overhead(self) -> float:
        """Stored bytes over the bytes of segments and own rows alone; 1 is none."""
        return self.stored_bytes / max(1, self.segment_bytes + self.own_bytes)


@dataclass(frozen=True, slots=True)
class StoreReport:
    """All families. A segment that several of them share is in each one's report, and once in `used`."""

    used: int
    budget: int
    families: Mapping[FamilyKey, FamilyReport]
    counts: PoolCounts
    tier: SpillCounts | None


def mirror_report(layout: Layout, mirror: Mirror) -> MirrorReport:
    """Sizes of one mirror."""
    per_block = mirror.index.per_block()
    return MirrorReport(
        tokens=len(mirror),
        own=mirror.index.rows,
        dense_bytes=len(mirror) * layout.row_bytes + mirror.tokens.nbytes,
        stored_bytes=mirror.nbytes,
        blocks=mirror.blocks,
        changed=len(mirror.index.blocks),
        per_block=tuple(np.bincount(per_block, minlength=BLOCK + 1)[1:].tolist()),
    )


def family_report(layout: Layout, family: Family) -> FamilyReport:
    """Sizes of one family; segments that only older mirrors still reference count too."""
    mirrors = {agent: mirror_report(layout, mirror) for agent, mirror in family.mirrors.items()}
    return FamilyReport(
        mirrors=mirrors,
        master_rows=len(family.master) if family.master else 0,
        segment_bytes=sum(segment.nbytes for segment in family.segments()),
        own_bytes=sum(mirror.own for mirror in mirrors.values()) * layout.row_bytes,
    )
