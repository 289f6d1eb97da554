"""Which rows of a member are stored: sorted blocks of 16 rows with a mask, whatever the engine's page size is.

One index serves K and V and all layers. Values are packed in the index's order, which is the token order: packed row
i belongs to the i-th token that `tokens()` lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokendance_engine.storage.errors import ShapeError

BLOCK = 16
Flags = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Stored rows of one mirror.

    Attributes:
        blocks: int32 [b], ascending block numbers; block i covers tokens [16 i, 16 i + 16).
        masks: uint16 [b]; bit r is set when row 16 i + r is stored. Never 0.
    """

    blocks: npt.NDArray[np.int32]
    masks: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, stored: Flags) -> BlockIndex:
        """From one flag per token, bool [n]."""
        padded = np.zeros(-(-len(stored) // BLOCK) * BLOCK, dtype=bool)
        padded[: len(stored)] = stored
        masks = np.packbits(padded, bitorder="little").view("<u2").astype(np.uint16)
        blocks = np.flatnonzero(masks)
        return cls(blocks.astype(np.int32), masks[blocks])

    def tokens(self) -> Index:
        """Stored tokens in packed order, int64 [rows]."""
        bits = np.unpackbits(self.masks.astype("<u2").view(np.uint8), bitorder="little")
        block, row = np.nonzero(bits.reshape(-1, BLOCK))
        return self.blocks[block].astype(np.int64) * BLOCK + row

    def flags(self, size: int) -> Flags:
        """One flag per token, bool [size]."""
        flags = np.zeros(size, dtype=bool)
        flags[self.tokens()] = True
        return flags

    @property
    def rows(self) -> int:
        """Number of stored rows."""
        return int(self.per_block().sum())

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.masks.nbytes

    def per_block(self) -> Index:
        """Stored rows of each listed block, 1 to 16, int64 [b]."""
        bits = np.unpackbits(self.masks.view(np.uint8)).reshape(-1, BLOCK)
        rows: Index = bits.sum(axis=1, dtype=np.int64)
        return rows

    def check(self) -> None:
        """Raise AssertionError unless blocks ascend and none is empty."""
        assert self.blocks.dtype == np.int32
        assert self.masks.dtype == np.uint16
        assert self.blocks.shape == self.masks.shape
        assert bool((np.diff(self.blocks) > 0).all()), "blocks are out of order"
        assert bool((self.masks != 0).all()), "an empty block is listed"


def runs(flags: Flags) -> Index:
    """Contiguous True runs [start, end), int64 [n, 2]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.int64)


def expand(starts: Index, lengths: Index) -> Index:
    """Concatenate [start, start + length) of every run, int64 [sum of lengths].

    Raises:
        ShapeError: arrays of different lengths.
    """
    if starts.shape != lengths.shape:
        raise ShapeError(f"{len(starts)} starts and {len(lengths)} lengths; both must be the same number")
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(total, dtype=np.int64)
