"""Add the members' shifts to the positions of vLLM's own forward pass.

vLLM gives every token its index as position, in a buffer that is final by the time the connector gets the step's
metadata; slot mapping and attention metadata count indices and stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.adapters.vllm.messages import Shifts


def position_buffer(runner: Any) -> torch.Tensor | None:
    """The runner's positions, int64 [tokens]; None if this runner keeps them in another way.

    vLLM 0.32: `positions` (V1) or `input_buffers.positions` (V2).
    """
    buffer = getattr(runner, "positions", None)
    if buffer is None:
        buffer = getattr(getattr(runner, "input_buffers", None), "positions", None)
    return buffer if isinstance(buffer, torch.Tensor) and buffer.dim() == 1 else None


def batch_order(runner: Any) -> Sequence[str]:
    """Request ids in the order of the step's tokens.

    The V1 runner keeps its batch; the V2 runner builds one per step and hands it to the caller of the connector.

    Raises:
        RuntimeError: neither was found.
    """
    batch = getattr(runner, "input_batch", None)
    frame = sys._getframe(1)
    while batch is None and frame is not None:
        batch = frame.f_locals.get("input_batch")
        frame = frame.f_back  # type: ignore[assignment]
    if batch is None:
        raise RuntimeError("vLLM's batch was not found; positions cannot be shifted")
    order: Sequence[str] = batch.req_ids
    return order


def offsets(order: Sequence[str], shifts: Shifts) -> npt.NDArray[np.int64]:
    """What to add to each position of a pass, int64 [tokens].

    Args:
        order: request ids as their tokens follow each other.
    """
    total = np.zeros(sum(shifts.scheduled.values()), dtype=np.int64)
    at = 0
    for request_id in order:
        for n, shift in shifts.pieces.get(request_id, ()):
            total[at : at + n] = shift
            at += n
        if request_id not in shifts.pieces:
            at += shifts.scheduled.get(request_id, 0)
    if at != len(total):
        raise RuntimeError(f"the batch has {at} tokens, {len(total)} were scheduled")
    return total


def shift_positions(runner: Any, shifts: Shifts) -> None:
    """Add a pass's shifts in place.

    Raises:
        RuntimeError: the runner's batch is not the one that was scheduled.
    """
    buffer = position_buffer(runner)
    if buffer is None:
        raise RuntimeError("this model runner has no position buffer")
    add = torch.from_numpy(offsets(batch_order(runner), shifts))
    buffer[: len(add)] += add.to(buffer.device, buffer.dtype, non_blocking=True)
