"""What a PIC backend answers.

The scheduler asks what follows from the prompt alone (`source`, `select`); it keeps nothing. What needs KV is asked in
the worker (`choose`, `covers`, `correct`, `observe`), where one instance lives per session and set of options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.reuse.backends.options import Option, Value
from tokendance_engine.reuse.selection import Mask, Reused
from tokendance_engine.segments.key import SegmentKey, Tokens

Source = Literal["master", "alone"]
"""Where a shared segment's KV comes from: the session's transcript, computed once in order (`master`), or the segment
computed by itself after a neutral preamble (`alone`)."""

Positions = npt.NDArray[np.int64]
"""Positions, shape [n]."""

Scores = npt.NDArray[np.float32]
"""One deviation per token, shape [n]."""

Turn = Callable[[int, torch.Tensor, Positions, Positions], torch.Tensor]
"""Rotate keys of a layer, [n, heads, dim], from old to new positions, int64 [n] each; the result is float32."""

KV = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, [n, heads, dim] each, in the pages' dtype; keys are rotated to their positions."""


@dataclass(frozen=True, slots=True)
class Check:
    """Choose by what a check layer shows.

    Attributes:
        layer: layer whose keys are compared; the layers below it are computed for all reused and fresh tokens.
        scope: `member` (each member's own deviations), or `round` (those of the first member that has the tokens).
    """

    layer: int
    scope: Literal["member", "round"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Reused tokens of one shared segment in one member's context.

    Attributes:
        agent: the member.
        prompt: its tokens, int32; those before `start` are the context that the segment's source has not seen.
        start, end: the piece's indices in it.
        offset: tokens of the segment that precede the piece (cached or computed).
        segment: content key of the whole segment.
        row: the source's row of the first token.
        positions: where the tokens stand, int64 [end - start].
    """

    agent: str
    prompt: Tokens
    start: int
    end: int
    offset: int
    segment: SegmentKey
    row: int
    positions: Positions

    def __len__(self) -> int:
        return self.end - self.start


class Backend:
    """A PIC method with its options. Constructors must be cheap: every tagged request makes one.

    Attributes:
        name: as requests call it, and as its entry point is called.
        OPTIONS: the options it takes.
        source: where shared KV comes from.
        reference: it is run to be compared with: its rounds are served even at a loss, and only copy.
        check: how positions are chosen by deviation, or None.
        corrects: whether `covers`, `correct` and `observe` are asked.
        options: every option with its value.
        turn: rotates keys, in the worker; what is learned of a key at one position is of use at another so.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    source: Source = "master"
    reference: bool = True
    check: Check | None = None
    corrects: bool = False
    turn: Turn

    def __init__(self, **options: Value) -> None:
        self.options = options

    @property
    def identity(self) -> str:
        """Name and options: KV of backends with different identities is never mixed up."""
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in sorted(self.options.items()))})"

    @property
    def at_work(self) -> bool:
        """Whether the worker must ask it."""
        return self.check is not None or self.corrects

    @property
    def copies(self) -> bool:
        """Whether members always get KV of their own: pages can only be shared if all that happens is known ahead."""
        return self.reference or self.at_work or self.source != "master"

    def whole(self, option: str) -> int:
        """The value of a `Whole` option."""
        return int(self.options[option])

    def select(self, found: Sequence[Reused], size: int) -> Mask:
        """Positions to recompute whatever the KV is: bool [size], True only inside `found`; by default none."""
        return np.zeros(size, dtype=bool)

    def within(self, found: Sequence[Reused], most: int) -> Backend:
        """The backend whose `select` is asked in a round where a member may compute about `most` of `found` again.

        By default the backend itself: a published method keeps its budget however large a round is.
        """
        return self

    def expected(self, reused: int) -> int:
        """About how many of these tokens the worker will compute after all, for the step's budget."""
        return reused if self.corrects else 0

    def choose(self, pieces: Sequence[Piece], scores: Sequence[Scores]) -> list[Mask]:
        """With `check`: which tokens to compute after all.

        Args:
            pieces: reused tokens, ascending.
            scores: how far each one's key at the check layer is from the restored one: squared difference, summed
                over all heads (of all ranks) and dimensions.

        Returns:
            One mask per piece, bool [len(piece)].
        """
        raise NotImplementedError(f"backend {self.name!r} has a check layer and does not choose")

    def covers(self, piece: Piece) -> bool:
        """With `corrects`: whether `correct` can be asked for these tokens; if not, they are computed."""
        return False

    def correct(self, piece: Piece, layer: int, key: torch.Tensor, value: torch.Tensor) -> KV:
        """With `corrects`: the K and V to use in place of the restored ones; asked layer by layer."""
        raise NotImplementedError(f"backend {self.name!r} corrects nothing")

    def observe(self, piece: Piece, layer: int, restored: KV, computed: KV) -> None:
        """With `corrects`: what a piece that was not covered would have been, and what it is.

        Asked layer by layer, once the round is over: what is learned from a round serves the rounds after it, so
        that the order of members does not matter.
        """
