"""Pictures are drawn from rows, and say what they lack."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokendance_bench import figures
from tokendance_bench.figures import NothingToDrawError, load, memory, time
from tokendance_bench.figures.style import colour
from tokendance_bench.registry import BENCHMARKS

SYSTEMS = ("vllm", "vllm-shared-first", "tokendance-balanced")

ROWS: Mapping[str, Sequence[dict[str, Any]]] = {
    "prefill": [{"system": s, "round": 4, "seconds": 9.0 - n} for n, s in enumerate(SYSTEMS)],
    "motivation": [
        *({"kind": k, "index": n, "latency_s": n / 2} for k in ("rounds", "independent") for n in range(5)),
        {"kind": "rounds", "peak_kv_share": 0.98},
        {"kind": "independent", "peak_kv_share": 0.5},
    ],
    "similarity": [{"agent": "a", "page": n, "similarity": 0.9} for n in range(5)],
    "capacity": [
        *(
            {"system": s, "agents": n, "load": at, "latency_s": n * at, "slo_s": 4.0}
            for s in SYSTEMS
            for n in (1, 5, 10)
            for at in (0.5, 1.0)
        ),
        *({"part": "pages", "system": s, "running_at_once": 3} for s in SYSTEMS),
    ],
    "collective": [
        {"pair": "balanced", "agents": n, "load": at, "execution": e, "seconds": 2.0}
        for n in (3, 5)
        for at in (0.5, 1.0)
        for e in ("serial", "collective")
    ],
    "storage": [
        {
            "workload": "w",
            "fidelity": "fast",
            "ratio": 5.0,
            "changed_blocks_median": 0.1,
            "paper_layout_ratio": p,
        }
        for p in (None, 3.0)
    ],
    "restore": [{"members": n, "dense_ms": 2.0 * n, "fused_ms": 1.0 * n, "copy_ms": 0.5} for n in (1, 3)],
    "histories": [{"system": "vllm", "round": n, "seconds": 3.0} for n in (1, 2)],
    "fidelity": [
        {
            "workload": "w",
            "context": "single",
            "level": "fast",
            "round": 4,
            "kl": 0.1,
            "kl_low": 0.05,
            "kl_high": 0.2,
        },
        {"workload": "w", "context": "transcript", "level": "fast", "round": 1, "kl": 0.1},
        {"workload": "w", "context": "greedy", "level": "fast", "rounds": 6, "rounds_same": 4},
        {"workload": "w", "context": "flips", "level": "fast", "round": 1, "decisions": 7, "flips": 1},
    ],
    "judge": [{"system": "fast", "flips": 1, "choices": 10}],
    "pareto": [
        {"backend": "master", "setting": f"first {n}", "computed_share": n / 100, "kl": 0.1} for n in (0, 8)
    ],
    "overhead": [{"kind": k, "ratio": 1.0 + n / 100} for k in ("short", "long") for n in range(5)],
    "layouts": [
        {"workload": "w", "layout": at, "system": s, "seconds": 2.0}
        for at in ("history-first", "shared-first")
        for s in ("vllm", "tokendance-balanced")
    ],
    "steady": [{"round": n, "hit_rate": 0.9, "ms": 1.0} for n in range(10)],
}


@pytest.mark.parametrize("figure", figures.FIGURES, ids=lambda figure: figure.name)
def test_every_picture_is_drawn_from_rows_of_its_benchmark(figure: figures.Figure, tmp_path: Path) -> None:
    data = figures.draw(figure, ROWS[figure.benchmark], tmp_path / "x.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 500 * figure.panels
    assert height > 300


@pytest.mark.parametrize("figure", figures.FIGURES, ids=lambda figure: figure.name)
@pytest.mark.parametrize("rows", [[], [{"error": "did not start"}]], ids=["none", "an error"])
def test_rows_that_lack_what_is_shown_are_said_to(figure: figures.Figure, rows: Any, tmp_path: Path) -> None:
    with pytest.raises(NothingToDrawError):
        figures.draw(figure, rows, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_every_picture_belongs_to_a_benchmark_and_has_its_own_file() -> None:
    assert {figure.benchmark for figure in figures.FIGURES} <= set(BENCHMARKS)
    assert len({figure.name for figure in figures.FIGURES}) == len(figures.FIGURES)


def test_a_system_has_one_colour_under_old_and_new_names() -> None:
    assert colour("tokendance fast") == colour("tokendance-fast") == colour("fast")
    assert colour("unheard of") == colour("unheard of")


class Axes:
    """Takes what is drawn and forgets all but the points."""

    def __init__(self) -> None:
        self.lines: list[tuple[list[Any], list[Any]]] = []

    def plot(self, x: Sequence[Any], y: Sequence[Any], *args: Any, **more: Any) -> None:
        self.lines.append((list(x), list(y)))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def test_capacity_shows_most_agents_within_the_target() -> None:
    left, right = Axes(), Axes()
    load.capacity([{"failed": 0, **row} for row in ROWS["capacity"]], [left, right])
    assert right.lines[0] == ([0.5, 1.0], [5, 1])
    assert left.lines[0] == ([1, 5, 10], [1.0, 5.0, 10.0])


def test_collective_divides_serial_by_collective() -> None:
    rows = [
        {"pair": "balanced", "agents": 5, "load": 0, "execution": e, "seconds": s}
        for e, s in (("serial", 6.0), ("serial", 8.0), ("collective", 2.0))
    ]
    axes = Axes()
    load.collective(
        [*rows, {"pair": "ours", "agents": 5, "load": 0, "execution": "collective", "seconds": 1}], [axes]
    )
    assert axes.lines == [([5], [3.5])]


def test_restore_divides_dense_by_fused() -> None:
    left, right = Axes(), Axes()
    memory.restore(ROWS["restore"], [left, right])
    assert right.lines == [([1, 3], [2.0, 2.0])]


def test_values_are_grouped_in_order_and_missing_ones_left_out() -> None:
    rows = [{"a": "y", "b": 1}, {"a": "x", "b": 2}, {"a": "y", "b": 3}, {"a": "z"}, {"b": 4}]
    assert time.by(rows, "a", "b") == {"y": [1.0, 3.0], "x": [2.0]}
