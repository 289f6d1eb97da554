"""The benchmark of the CPU kernels measures every one of them, on work that it checks."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from tokendance_engine.kernels import bandwidth


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_kernel_is_timed_and_shown_beside_a_copy(dtype: torch.dtype) -> None:
    speeds = bandwidth.measure(rows=512, heads=2, repeats=1, dtype=dtype)
    names = [speed.kernel for speed in speeds]
    assert names[0] == "copy"
    assert {"restore", "diff, equal", "deviation"} < set(names)
    assert all(speed.bytes > 0 and speed.seconds > 0 for speed in speeds)
    size = torch.empty(0, dtype=dtype).element_size()
    assert speeds[0].bytes == 2 * 512 * 2 * 2 * 64 * size  # K and V, read and written
    shown = bandwidth.table(speeds)
    assert all(f"| {name} |" in shown for name in names)
    assert "| 100% |" in shown
    print(f"\n{dtype}\n{shown}")
