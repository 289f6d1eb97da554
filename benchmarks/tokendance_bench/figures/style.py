"""How all pictures look: sizes, and one colour per system wherever it appears."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "vllm": "#7f7f7f",
    "vllm-shared-first": "#4c4c4c",
    "lmcache": "#9467bd",
    "serial-cacheblend15": "#1f77b4",
    "tokendance-cacheblend15": "#17becf",
    "serial-balanced": "#2ca02c",
    "tokendance-balanced": "#ff7f0e",
    "tokendance-fast": "#d62728",
    "tokendance-balanced-copy": "#ffbb78",
    "tokendance-fast-copy": "#ff9896",
}
_MORE = ("#8c564b", "#e377c2", "#bcbd22", "#aec7e8", "#98df8a", "#c5b0d5")


class NothingToDrawError(ValueError):
    """The rows lack what a picture shows."""


def colour(name: str) -> str:
    """A system's colour, the same in every picture; names of older results and of levels are understood."""
    plain = name.replace(" ", "-")
    for known in (plain, f"tokendance-{plain}"):
        if known in COLOURS:
            return COLOURS[known]
    return _MORE[sum(map(ord, plain)) % len(_MORE)]


def canvas(panels: int) -> tuple[Any, list[Any]]:
    """A figure, and its axes from left to right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sheet, axes = plt.subplots(
        1, panels, figsize=(1.5 + 5.5 * panels, 4.2), squeeze=False, layout="constrained"
    )
    for each in axes[0]:
        each.set_axisbelow(True)
        each.grid(axis="y", alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    return sheet, list(axes[0])


def drop(sheet: Any) -> None:
    """Let a figure go."""
    from matplotlib import pyplot as plt

    plt.close(sheet)


def save(sheet: Any, title: str, path: Path) -> Path:
    """Write the figure as PNG."""
    sheet.suptitle(title, fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.savefig(path, dpi=110)
    return path


def bars(
    axes: Any,
    names: Sequence[str],
    heights: Sequence[float],
    digits: str = ".3g",
    intervals: Sequence[tuple[float, float]] = (),
) -> None:
    """One bar a name, its height written on top (of its interval, if it has one)."""
    axes.bar(range(len(names)), heights, color=[colour(name) for name in names], width=0.65)
    for place, height in enumerate(heights):
        low, high = intervals[place] if intervals else (height, height)
        axes.vlines(place, low, high, color="black", linewidth=1)
        axes.annotate(
            format(height, digits), (place, max(high, height)), ha="center", fontsize=8, xytext=(0, 3),
            textcoords="offset points",
        )  # fmt: skip
    axes.set_xticks(range(len(names)), [name.replace("-", "-\n", 1) for name in names], fontsize=8)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
