"""Stored bits as float32 and back, inside compiled code; numba has no bfloat16, so it is done on its bits."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload


@numba.njit(inline="always")
def _widen(bits):  # type: ignore[no-untyped-def]
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@numba.njit(inline="always")
def _narrow(number):  # type: ignore[no-untyped-def]
    # Round to nearest, ties to even, as torch does.
    bits = np.float32(number).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16(bits >> np.uint32(16))


def number(bits: Any) -> Any:
    """The float32 that stored bits stand for: uint16 holds bfloat16, uint32 float32."""
    raise NotImplementedError("exists only inside compiled code")


@overload(number, inline="always")
def _number(bits):  # type: ignore[no-untyped-def]
    if bits == numba.uint16:
        return lambda bits: _widen(bits)
    return lambda bits: np.uint32(bits).view(np.float32)


def rounded(number: Any, like: Any) -> Any:
    """A float32 as the bits of `like`'s width."""
    raise NotImplementedError("exists only inside compiled code")


@overload(rounded, inline="always")
def _rounded(number, like):  # type: ignore[no-untyped-def]
    if like == numba.uint16:
        return lambda number, like: _narrow(number)
    return lambda number, like: np.float32(number).view(np.uint32)
