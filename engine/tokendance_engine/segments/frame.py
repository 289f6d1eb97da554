"""Where the tokens of a context stand: index plus a shift that grows in steps.

RoPE is relative, so a context may leave positions out. A member whose shared region is to stand where another
member's stands skips positions right before it; everything after keeps the shift.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """Positions of a context.

    Attributes:
        steps: (first index, shift) pairs, both ascending; before the first step the shift is 0.
    """

    steps: tuple[tuple[int, int], ...] = ()

    @property
    def shift(self) -> int:
        """The shift at the end."""
        return self.steps[-1][1] if self.steps else 0

    def shift_at(self, index: int) -> int:
        """The shift of one index."""
        return next((shift for first, shift in reversed(self.steps) if first <= index), 0)

    def at(self, indices: Indices) -> Indices:
        """Positions of the tokens with these indices, int64 [n]."""
        if not self.steps:
            return indices
        first = np.array([f for f, _ in self.steps])
        shifts = np.array([0, *(s for _, s in self.steps)])
        positions: Indices = indices + shifts[np.searchsorted(first, indices, side="right")]
        return positions

    def stepped(self, index: int, shift: int) -> Frame:
        """With another shift from an index on.

        Raises:
            ValueError: the step is not beyond the last one, or the shift would shrink.
        """
        if (self.steps and (index <= self.steps[-1][0] or shift < self.steps[-1][1])) or shift < 0:
            raise ValueError(f"a step to shift {shift} at {index} cannot follow {self.steps[-1:]}")
        return self if shift == self.shift else Frame((*self.steps, (index, shift)))

    def before(self, index: int) -> Frame:
        """Only the steps before an index."""
        return Frame(tuple(s for s in self.steps if s[0] < index))

    def pieces(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """[start, end) cut where the shift changes, as (start, end, shift)."""
        cuts = [start, *(f for f, _ in self.steps if start < f < end), end]
        return [(a, b, self.shift_at(a)) for a, b in itertools.pairwise(cuts) if b > a]


IN_PLACE = Frame()
"""Every token at its index."""
