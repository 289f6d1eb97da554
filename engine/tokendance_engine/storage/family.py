"""What one session keeps: its master and its members' mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tokendance_engine.storage.ledger import Sized
from tokendance_engine.storage.master import Master
from tokendance_engine.storage.mirror import Mirror
from tokendance_engine.storage.rows import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The index bytes of a mirror or the token ids of a master, as a thing that a ledger counts."""

    nbytes: int


@dataclass(slots=True, eq=False)
class Family:
    """Changed only by the pool, which keeps the ledger in step.

    Attributes:
        master: the current transcript; mirrors may still reference segments of earlier ones.
        mirrors: by agent, least recently written first.
        pins: while above 0 the family is neither evicted nor expired.
        touched: the pool's clock at the last use.
    """

    master: Master | None = None
    master_index: Index | None = None
    mirrors: dict[str, Mirror] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)
    pins: int = 0
    touched: float = 0.0

    def holdings(self) -> Iterator[Sized]:
        """Everything it holds, once per hold."""
        if self.master is not None and self.master_index is not None:
            yield from self.of_master(self.master, self.master_index)
        for agent, mirror in self.mirrors.items():
            yield from self.of_mirror(mirror, self.indexes[agent])

    @staticmethod
    def of_master(master: Master, index: Index) -> Iterator[Sized]:
        """What a master holds."""
        yield index
        yield from master.segments

    @staticmethod
    def of_mirror(mirror: Mirror, index: Index) -> Iterator[Sized]:
        """What one mirror holds."""
        yield index
        yield from mirror.parts
        yield from mirror.references.segments

    def segments(self) -> list[Segment]:
        """Every segment it holds, once; the master's first."""
        held = {id(s): s for s in (self.master.segments if self.master is not None else ())}
        for mirror in self.mirrors.values():
            held |= {id(s): s for s in mirror.references.segments}
        return list(held.values())

    def texts(self) -> list[tuple[Segment, ...]]:
        """Its segments as texts: the master's together, earlier ones each alone."""
        master = self.master.segments if self.master is not None else ()
        return [master, *((segment,) for segment in self.segments()[len({id(s) for s in master}) :])]

    def check(self) -> None:
        """Raise AssertionError unless mirrors and their indexes agree."""
        assert self.mirrors.keys() == self.indexes.keys()
        assert self.pins >= 0
        if self.master is not None:
            self.master.check()
            assert self.master_index is not None
            assert self.master_index.nbytes == self.master.tokens.nbytes
        for agent, mirror in self.mirrors.items():
            mirror.check()
            assert mirror.index_bytes == self.indexes[agent].nbytes
