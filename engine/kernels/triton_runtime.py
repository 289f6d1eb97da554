"""One kernel function, two ways to run it: compiled for a GPU, or in Triton's interpreter.

Kernels are plain functions, wrapped here per use, so that both ways exist in one process and no environment variable
changes what an importing vLLM does with Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

Kernel = Callable[..., None]


@functools.cache
def compiled(kernel: Kernel) -> Any:
    """For a GPU; compiled at its first launch with each set of constants."""
    return JITFunction(kernel)


@functools.cache
def interpreted(kernel: Kernel) -> Any:
    """In Triton's interpreter, on any device: for tests, milliseconds a program instance."""
    return InterpretedFunction(kernel)


def runner(kernel: Kernel, device: torch.device, interpret: bool) -> Any:
    """What to call as `runner(...)[grid](...)`.

    Raises:
        RuntimeError: a device that Triton compiles nothing for, and no interpretation asked for.
    """
    if interpret:
        return interpreted(kernel)
    if device.type != "cuda":
        raise RuntimeError(
            f"Triton kernels on {device}: allowed are CUDA and ROCm devices, or interpretation"
        )
    return compiled(kernel)
