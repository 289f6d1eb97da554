"""What options a backend takes, and refusals that say what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokendance_engine.errors import ConfigError

Value = int | str


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number.

    Attributes:
        default: value if the request gives none; None: the tokens per block of the request's fidelity.
        low, high: bounds, inclusive.
    """

    default: int | None
    low: int = 0
    high: int = 1 << 20

    @property
    def allowed(self) -> str:
        """For messages."""
        return f"an integer from {self.low} to {self.high}"

    def takes(self, value: Any) -> bool:
        """Whether a value is allowed."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some names, the first by default."""

    names: tuple[str, ...]

    @property
    def default(self) -> str:
        """The first name."""
        return self.names[0]

    @property
    def allowed(self) -> str:
        """For messages."""
        return "one of " + ", ".join(self.names)

    def takes(self, value: Any) -> bool:
        """Whether a value is allowed."""
        return isinstance(value, str) and value in self.names


Option = Whole | Choice


def resolve(
    backend: str, known: Mapping[str, Option], given: Mapping[str, Any], first: int
) -> dict[str, Value]:
    """Every option of a backend with its value.

    Args:
        backend: its name, for messages.
        known: what it takes.
        given: what the request gave.
        first: tokens of each block to recompute at the request's fidelity.

    Raises:
        ConfigError: an unknown option, or a value that is not allowed.
    """
    for key, value in given.items():
        if key not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"option {key!r} of backend {backend!r} is unknown; allowed: {allowed}")
        if not known[key].takes(value):
            raise ConfigError(
                f"option {key!r} of backend {backend!r} is {value!r}; allowed: {known[key].allowed}"
            )
    values: dict[str, Value] = {}
    for key, option in known.items():
        default = first if option.default is None else option.default
        values[key] = given.get(key, default)
    return values
