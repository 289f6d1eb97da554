"""Position-independent-caching backends: which restored positions to compute anyway.

A backend is a pure function of the reused segments, so the plan of a member is the same whether it is executed alone
or with its round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tokendance_engine.errors import ConfigError
from tokendance_engine.reuse.selection import Mask, Reused, first_of_each


class Backend(Protocol):
    """What a PIC method answers."""

    name: str
    reference: bool
    """True for a method that is run to be compared with: its rounds are served even at a loss."""

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        """Positions to recompute: bool [size], True only inside `found`."""
        ...


class Master:
    """Reuse the shared transcript's KV; recompute the first `first` tokens of each block (the default)."""

    name = "master"
    reference = False

    def __init__(self, first: int) -> None:
        self.first = first

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        return first_of_each(found, self.first, size)


class Everything:
    """Recompute every restored position: the reference, equal to a full prefill."""

    name = "all"
    reference = True

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        marked = np.zeros(size, dtype=bool)
        for segment in found:
            marked[segment.start : segment.end] = True
        return marked


def _master(first: int, options: Mapping[str, Any]) -> Backend:
    return Master(int(options.get("first", first)))


def _everything(first: int, options: Mapping[str, Any]) -> Backend:
    return Everything()


_REGISTRY: dict[str, tuple[Callable[[int, Mapping[str, Any]], Backend], frozenset[str]]] = {
    "master": (_master, frozenset({"first"})),
    "all": (_everything, frozenset()),
}
"""name -> (factory(first, options), the options it knows)."""


def names() -> list[str]:
    """Registered backends."""
    return sorted(_REGISTRY)


def make_backend(name: str, first: int, options: Mapping[str, Any]) -> Backend:
    """The backend of one request.

    Args:
        name: one of `names()`.
        first: tokens of each block to recompute at this request's fidelity.
        options: the request's `options`.

    Raises:
        ConfigError: unknown name or option, or an option out of range.
    """
    if name not in _REGISTRY:
        raise ConfigError(f"backend {name!r} is unknown; allowed: {', '.join(names())}")
    factory, allowed = _REGISTRY[name]
    for key, value in options.items():
        if key not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise ConfigError(f"option {key!r} of backend {name!r} is unknown; allowed: {known}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 20:
            raise ConfigError(
                f"option {key!r} of backend {name!r} is {value!r}; allowed: an integer from 0 to 1048576"
            )
    return factory(first, options)
