"""Exact bytes of shared objects: each is counted once, from its first holder to its last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Sized(Protocol):
    """Anything that a ledger counts; compared by identity."""

    @property
    def nbytes(self) -> int: ...


class Ledger:
    """Reference counts and bytes."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Sized, int]] = {}
        self.used = 0

    def __contains__(self, thing: Sized) -> bool:
        return id(thing) in self._held

    def hold(self, things: Iterable[Sized]) -> None:
        """One more holder of each."""
        for thing in things:
            _, count = self._held.get(id(thing), (thing, 0))
            if not count:
                self.used += thing.nbytes
            self._held[id(thing)] = (thing, count + 1)

    def drop(self, things: Iterable[Sized]) -> list[Sized]:
        """One holder less of each.

        Returns:
            What nobody holds any more.

        Raises:
            KeyError: something that nobody holds.
        """
        gone = []
        for thing in things:
            _, count = self._held[id(thing)]
            if count > 1:
                self._held[id(thing)] = (thing, count - 1)
            else:
                del self._held[id(thing)]
                self.used -= thing.nbytes
                gone.append(thing)
        return gone

    def count(self, thing: Sized) -> int:
        """Holders of a thing."""
        return self._held[id(thing)][1] if thing in self else 0

    def things(self) -> list[Sized]:
        """Everything that is held."""
        return [thing for thing, _ in self._held.values()]

    def check(self) -> None:
        """Raise AssertionError unless the bytes add up."""
        assert self.used == sum(thing.nbytes for thing, _ in self._held.values())
        assert all(count > 0 for _, count in self._held.values())
