"""How fast the CPU kernels move bytes, beside a plain copy: `python -m tokendance_engine.kernels.bandwidth`.

Every row reads or writes what its kernel must (each side once); a copy reads and writes. Best of several, one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch
from tokendance_engine.kernels import cpu, cpu_diff, cpu_rows
from tokendance_engine.kernels.blocks import present_rows
from tokendance_engine.kernels.cpu_moves import Turns
from tokendance_engine.kernels.cpu_planes import PackedPlane, Separable
from tokendance_engine.kernels.planes import Planes, RowMap
from tokendance_engine.kernels.reference import diff_reference


@dataclass(frozen=True, slots=True)
class Speed:
    """One kernel: bytes it must move, best seconds, and both beside a copy."""

    kernel: str
    bytes: int
    seconds: float

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9


def measure(
    rows: int = 32768, heads: int = 3, dim: int = 64, page: int = 32, dtype: torch.dtype = torch.float32,
    share: float = 0.08, repeats: int = 7,
) -> list[Speed]:  # fmt: skip
    """Time every CPU kernel on one layer; the first entry is a plain copy of as many rows (K and V).

    Args:
        rows: rows of the mirror, and of its master; dim: head size; page: rows of a page; share: changed rows.
    """
    generator = torch.Generator().manual_seed(0)
    pages = 2 * rows // page
    cache = torch.randn(pages, heads, page, 2 * dim, generator=generator).to(dtype)
    token, at = torch.arange(page)[:, None], torch.arange(dim)[None]
    key_at, value_at = at * page + token, page * dim + token * dim + at  # as vLLM's vector kernels pack
    key, value = (Separable.of(where.flatten(), page) for where in (key_at, value_at))
    assert key is not None
    assert value is not None
    source = np.arange(rows, dtype=np.int64)
    target = source + rows
    angle = torch.rand(rows, dim // 2, generator=generator) * 6
    index = cpu.Rows(
        source // page, source % page, target // page, target % page, angle.cos().numpy(), angle.sin().numpy()
    )
    k, v = PackedPlane.of_pages(cache, key), PackedPlane.of_pages(cache, value)
    assert k is not None
    assert v is not None
    both, runs = cpu_diff.PackedPlanes(k, v), index.runs()
    planes, turns = cpu.Planes(k, v), Turns(runs, index.cos, index.sin)
    one = rows * heads * 2 * dim * cache.element_size()  # K and V of one side
    copy_from, copy_to = cache[: pages // 2], torch.empty_like(cache[: pages // 2])

    speeds = [Speed("copy", 2 * one, _best(lambda: copy_to.copy_(copy_from), repeats))]
    speeds.append(Speed("restore", 2 * one, _best(lambda: cpu.restore(planes, planes, runs, turns), repeats)))
    speeds.append(Speed("diff, equal", 2 * one, _best(lambda: cpu_diff.diff(both, both, index), repeats)))
    plain = Planes(*(cache.flatten(2)[:, :, at] for at in (key_at, value_at)))
    place = torch.arange(2 * rows).view(2, rows)
    (from_page, to_page), (from_row, to_row) = place // page, place % page
    mapped = RowMap(from_page, from_row, to_page, to_row, angle.cos(), angle.sin())
    speeds.append(
        Speed(
            "diff, equal, as specified in torch",
            2 * one,
            _best(lambda: diff_reference(plain, plain, mapped), 1),
        )
    )
    speeds.append(Speed("deviation", one, _best(lambda: cpu_diff.deviation(k, k, index), repeats)))
    changed = torch.rand(rows, generator=generator) < share
    at_rows = target[changed.numpy()]
    packed = cpu_rows.gather(v, at_rows // page, at_rows % page)
    cpu_rows.scatter(packed + 1, v, at_rows // page, at_rows % page)
    masks = torch.from_numpy(cpu_diff.diff(both, both, index))
    found = target[present_rows(masks, rows).numpy()]
    assert np.array_equal(found, at_rows)

    def pack() -> None:
        for plane in (k, v):
            cpu_rows.gather(plane, found // page, found % page)

    part = one * len(found) // rows
    speeds.append(Speed(f"pack, {share:.0%} of the rows", 2 * part, _best(pack, repeats)))
    return speeds


def _best(run: Callable[[], object], repeats: int) -> float:
    run()  # compiles, and touches the memory
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def table(speeds: list[Speed]) -> str:
    """As Markdown: GB/s, and the share of the copy's."""
    copy = speeds[0].gigabytes_per_second
    lines = ["| kernel | MB | ms | GB/s | of a copy |", "|---|---|---|---|---|"]
    lines += [
        f"| {s.kernel} | {s.bytes / 1e6:.0f} | {s.seconds * 1e3:.2f} | {s.gigabytes_per_second:.1f} "
        f"| {s.gigabytes_per_second / copy:.0%} |"
        for s in speeds
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(numba.get_num_threads())
    for dtype in (torch.float32, torch.bfloat16):
        print(f"\n{dtype}, {numba.get_num_threads()} threads\n\n{table(measure(dtype=dtype))}")
