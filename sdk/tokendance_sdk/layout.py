"""Layouts: the order in which one agent sees the shared blocks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import LayoutError

Order = Callable[[str, Sequence[Block]], Sequence[Block]]
"""(agent, shared blocks) -> the same blocks in this agent's order; pure."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A named order, and whether the shared blocks come before the private history.

    Example:
        >>> shared = [Block("a", "ann"), Block("b", "bob")]
        >>> [b.owner for b in Layout.self_last().arrange("ann", shared)]
        ['bob', 'ann']
    """

    name: str
    order: Order
    before_history: bool = False

    def arrange(self, agent: str, shared: Sequence[Block]) -> tuple[Block, ...]:
        """The shared blocks in `agent`'s order.

        Raises:
            LayoutError: the order lost, repeated or invented blocks; the message names them.
        """
        shared = tuple(shared)
        arranged = tuple(self.order(agent, shared))
        if arranged == shared:
            return arranged
        given, got = Counter(shared), Counter(arranged)
        if given != got:
            faults = {
                "missing": given - got,
                "duplicate": Counter({b: n for b, n in (got - given).items() if b in given}),
                "unknown": Counter({b: n for b, n in got.items() if b not in given}),
            }
            found = "; ".join(f"{kind}: {_names(blocks)}" for kind, blocks in faults.items() if blocks)
            raise LayoutError(
                f"layout {self.name!r} for agent {agent!r} is no permutation: {found}; "
                f"allowed: each of the {len(shared)} shared blocks exactly once"
            )
        return arranged

    @staticmethod
    def canonical() -> Layout:
        """The order the caller lists them in, the same for every agent: shares most."""
        return Layout("canonical", lambda agent, shared: shared)

    @staticmethod
    def self_last() -> Layout:
        """The agent's own blocks after everybody else's."""
        return Layout("self_last", lambda agent, shared: sorted(shared, key=lambda b: b.owner == agent))

    @staticmethod
    def rotated() -> Layout:
        """Starting at the agent's first own block, those before it at the end; as listed if it has none."""
        return Layout("rotated", _rotate)

    @staticmethod
    def shared_first() -> Layout:
        """As `canonical`, but before the private history: an exact common prefix, on any engine."""
        return Layout("shared_first", lambda agent, shared: shared, before_history=True)

    @staticmethod
    def shuffled(seed: int) -> Layout:
        """A random order for each agent, the same for the same seed, agent and blocks on every machine."""

        def shuffle(agent: str, shared: Sequence[Block]) -> Sequence[Block]:
            order = list(shared)
            random.Random(f"{seed}:{agent}").shuffle(order)
            return order

        return Layout(f"shuffled({seed})", shuffle)

    @staticmethod
    def custom(order: Order, *, name: str = "custom", before_history: bool = False) -> Layout:
        """An order of your own; it is checked each time it is used."""
        return Layout(name, order, before_history)


def _rotate(agent: str, shared: Sequence[Block]) -> Sequence[Block]:
    start = next((i for i, block in enumerate(shared) if block.owner == agent), 0)
    return [*shared[start:], *shared[:start]]


def _names(blocks: Iterable[Block]) -> str:
    return ", ".join(f"{b.owner or 'nobody'} ({b.id})" for b in blocks)
