"""EPIC's LegoLink (arXiv 2410.15332): segments computed by themselves, their first tokens recomputed in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tokendance_engine.reuse.backends.interface import Backend, Source
from tokendance_engine.reuse.backends.options import Choice, Option, Value, Whole
from tokendance_engine.reuse.selection import Mask, Reused, first_of_each

SOURCES = Choice(("alone", "master"))


def source_of(options: Mapping[str, Value]) -> Source:
    """The value of an option with `SOURCES`."""
    return "master" if options["source"] == "master" else "alone"


class Epic(Backend):
    """Recompute the first tokens of each block, whatever fidelity says."""

    name = "epic"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"first": Whole(32), "source": SOURCES}

    def __init__(self, **options: Value) -> None:
        super().__init__(**options)
        self.source = source_of(options)

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        return first_of_each(found, self.whole("first"), size)
