"""What backends that correct K/V learn from a round, held back until the round is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendance_engine.reuse.backends import Backend, Piece
from tokendance_engine.reuse.backends.interface import KV
from tokendance_engine.reuse.ports import PageTable, Rows

StateKey = tuple[str, ...]
"""Whose backend: (tenant's salt, session, ..., identity)."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """A piece that was computed because nothing corrects it, and what was restored there, layer by layer."""

    piece: Piece
    restored: list[KV]


class Lessons:
    """Lessons of one worker.

    Args:
        rows: its pages.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._waiting: dict[StateKey, tuple[str, list[tuple[Lesson, list[KV]]]]] = {}

    def add(self, key: StateKey, round_id: str, pages: PageTable, lessons: Sequence[Lesson]) -> None:
        """Keep what was computed in the place of what was restored."""
        _, waiting = self._waiting.setdefault(key, (round_id, []))
        for lesson in lessons:
            at = np.arange(lesson.piece.start, lesson.piece.end)
            waiting.append((lesson, [self._rows.read(n, pages, at) for n in range(self._rows.layers)]))

    def teach(self, key: StateKey, round_id: str, backend: Backend) -> None:
        """A round begins or goes on: show the backend what other rounds have left."""
        before, waiting = self._waiting.get(key, (round_id, []))
        if before == round_id:
            return
        del self._waiting[key]
        for lesson, computed in waiting:
            for layer, (old, new) in enumerate(zip(lesson.restored, computed, strict=True)):
                backend.observe(lesson.piece, layer, old, new)

    def forget(self, key: StateKey) -> None:
        """The backend is gone."""
        self._waiting.pop(key, None)
