"""What the scheduler half knows about a member's stored history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokendance_engine.adapters.vllm.mirror_jobs import FILLER, Held
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.adapters.vllm.rekey import Chain, Disposition, Point
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.positions import Positions

if TYPE_CHECKING:
    from tokendance_engine.adapters.vllm.members import Member


@dataclass(slots=True, eq=False)
class History:
    """A member's stored history and what came of it.

    Attributes:
        size: leading tokens of its prompt that can come back, a multiple of the page size.
        lies: how the prompt must lie up to there.
        pages: those it came back into (and the cached ones before), until vLLM has seated the member.
        restored: tokens that came back.
        master: id of the master that its round's plan takes from.
    """

    size: int = 0
    lies: Disposition = field(default_factory=Disposition)
    pages: Preparation | None = None
    restored: int = 0
    master: int | None = None

    def usable(self, member: Member, page_size: int) -> int:
        """Tokens that can come back as the member lies now."""
        return self.size if self.size and member.lies.before(self.size, page_size) == self.lies else 0


def chain_of(held: Held, page_size: int) -> Chain:
    """How a stored context lay in pages, if the engine that knew it is gone; what is approximate gets a new salt."""
    filler = held.tokens == FILLER
    edges = np.flatnonzero(np.diff(np.concatenate(([False], filler, [False])).astype(np.int8))).reshape(-1, 2)
    steps = tuple((int(first), int(shift)) for first, shift in held.positions.steps if shift)
    points: tuple[Point, ...] = ()
    if held.approximate_from is not None:
        points = (Point.fresh(held.approximate_from // page_size),)
    filling = Filling(tuple((int(a), int(b - a)) for a, b in edges))
    return Chain.of(held.tokens, Disposition(filling, Frame(steps), points))


def in_common(member: Member, held: Held, page_size: int) -> int:
    """Leading tokens of a member's prompt, as it lies, that a stored context has: the same ids at the same places.

    What is approximate counts only where the member's keys are salted. A multiple of the page size, less than the
    prompt.
    """
    mine = marked(member.prompt, member.lies.filling)
    size = min(len(mine) - 1, len(held.tokens))
    at = np.arange(size)
    same = (mine[:size] == held.tokens[:size]) & (held.positions.at(at) == member.lies.frame.at(at))
    other = np.flatnonzero(~same)
    size = int(other[0]) if len(other) else size
    if held.approximate_from is not None:
        salted = member.lies.points[0].page * page_size if member.lies.points else size
        if held.approximate_from < salted:
            size = min(size, held.approximate_from)
    return size // page_size * page_size


def marked(tokens: Tokens, filling: Filling) -> Tokens:
    """Token ids with `FILLER` where fillers stand, int32 [n]."""
    made: Tokens = np.array(tokens, dtype=np.int32)
    for at, count in filling.inserts:
        made[at : at + count] = FILLER
    return made


def positions_of(frame: Frame) -> Positions:
    """A frame as the store has it."""
    first = [] if frame.steps and frame.steps[0][0] == 0 else [(0, 0)]
    return Positions(np.array([*first, *frame.steps], dtype=np.int32).reshape(-1, 2))
