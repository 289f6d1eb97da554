"""Policy of the Triton kernels: how many rows a program takes, and with how many warps. Never touches memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ROWS = 16
"""Rows of a program: one storage block, and at least one cache line per dimension of a transposed plane."""


MOST_REGISTERS = 128
"""Registers a thread may take on NVIDIA. Left to itself, ptxas aims at occupancy and spills kernels of 70 registers."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a kernel is launched: rows of a program, warps of a program."""

    rows: int = ROWS
    warps: int = 4

    def options(self, nvidia: bool) -> dict[str, Any]:
        """As Triton's launch options; the register bound exists on NVIDIA only.

        Multiply and add are not fused: then restore and diff round alike, whatever a compiler makes of them, and like
        the torch specification.
        """
        options = {"num_warps": self.warps, "enable_fp_fusion": False}
        return options | ({"maxnreg": MOST_REGISTERS} if nvidia else {})


def tuning(dim: int, kernel: str = "") -> Tuning:
    """For a head size: wide heads take more warps, so that a row's elements stay in few registers a thread.

    The diff kernel keeps one register for each element it compares, so it takes twice as many.
    """
    warps = 8 if dim > 128 else 4
    return Tuning(warps=2 * warps if kernel == "diff" else warps)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n and 1."""
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def pairing(half: int, neox: bool) -> dict[str, int]:
    """Constants that tell a kernel which dimensions make a rotated pair."""
    return {"HALF": half, "STEP": 1 if neox else 2, "GAP": half if neox else 1}


def shape_constants(dim: int, half: int) -> dict[str, Any]:
    """Constants that follow from a key's size."""
    return {"KDIM": dim, "HALF_P2": power_of_two(half), "REST_P2": power_of_two(dim - 2 * half)}
