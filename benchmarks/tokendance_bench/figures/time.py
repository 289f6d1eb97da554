"""Pictures of seconds: prefill, histories, overhead, layouts, steady state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_bench.figures.style import NothingToDrawError, bars, colour

Rows = Sequence[dict[str, Any]]


def by(rows: Rows, key: str, value: str) -> dict[Any, list[float]]:
    """Values of a column, grouped by another one, in order of appearance; rows without both are left out."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        if row.get(key) is not None and row.get(value) is not None:
            found.setdefault(row[key], []).append(float(row[value]))
    if not found:
        raise NothingToDrawError(f"no row has both {key!r} and {value!r}")
    return found


def prefill(rows: Rows, axes: Sequence[Any]) -> None:
    """Median seconds per system over the repetitions, and how many times faster than plain vLLM."""
    seconds = {name: statistics.median(each) for name, each in by(rows, "system", "seconds").items()}
    bars(axes[0], list(seconds), list(seconds.values()))
    plain = seconds.get("vllm")
    if plain:
        for place, (name, took) in enumerate(seconds.items()):
            if name != "vllm":
                axes[0].text(
                    place,
                    took / 2,
                    f"{plain / took:.2f}x",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white",
                    weight="bold",
                )
    axes[0].set_ylabel("seconds (lower is better)")


def histories(rows: Rows, axes: Sequence[Any]) -> None:
    """Seconds of every round, one line a system."""
    for name in by(rows, "system", "seconds"):
        mine = [row for row in rows if row["system"] == name]
        axes[0].plot(
            [r["round"] for r in mine], [r["seconds"] for r in mine], "o-", label=name, color=colour(name)
        )
    axes[0].set_xlabel("round (the first starts with nothing cached)")
    axes[0].set_ylabel("seconds (lower is better)")
    axes[0].set_xticks(sorted({row["round"] for row in rows}))
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)


def overhead(rows: Rows, axes: Sequence[Any]) -> None:
    """Every pair's ratio as a dot, and each kind's median as a line."""
    pairs = by(rows, "kind", "ratio")
    for place, ratios in enumerate(pairs.values()):
        # Dots side by side, in the order in which they were measured.
        across = [place - 0.3 + 0.6 * n / max(1, len(ratios) - 1) for n in range(len(ratios))]
        axes[0].plot(across, ratios, ".", alpha=0.6, color=colour("tokendance-balanced"))
        middle = statistics.median(ratios)
        axes[0].hlines(middle, place - 0.35, place + 0.35, color="black")
        axes[0].text(place + 0.36, middle, f"{middle:.4f}", va="center", fontsize=9)
    axes[0].axhline(1, linestyle="--", color="grey", linewidth=1)
    axes[0].set_xticks(range(len(pairs)), [f"{kind} chats" for kind in pairs])
    axes[0].set_xlim(-0.6, len(pairs) - 0.2)
    axes[0].set_ylabel("seconds with the plugin / without")


def layouts(rows: Rows, axes: Sequence[Any]) -> None:
    """Groups of bars: one group a workload, one bar a system with its layout."""
    groups = list(dict.fromkeys(row["workload"] for row in rows))
    names = list(dict.fromkeys((row["layout"], row["system"]) for row in rows))
    width = 0.8 / len(names)
    hatches = dict(zip(dict(names), ("", "//", "..", "xx"), strict=False))
    for place, (layout, system) in enumerate(names):
        at, heights = [], []
        for group, workload in enumerate(groups):
            found = [
                row["seconds"]
                for row in rows
                if (row["workload"], row["layout"], row["system"]) == (workload, layout, system)
            ]
            if found:
                at.append(group + (place - (len(names) - 1) / 2) * width)
                heights.append(statistics.median(found))
        axes[0].bar(
            at, heights, width * 0.92, label=f"{system}, {layout}", color=colour(system),
            hatch=hatches[layout], edgecolor="white",
        )  # fmt: skip
    axes[0].set_xticks(range(len(groups)), groups, fontsize=8)
    axes[0].set_ylabel("seconds (lower is better)")
    axes[0].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


STEADY = {
    "hit_rate": "hit rate",
    "rss_mb": "memory of the process",
    "stored_mb": "memory of the store",
    "ms": "latency",
}


def steady(rows: Rows, axes: Sequence[Any]) -> None:
    """Every numeric column over the rounds, each relative to its median."""
    found = False
    for name in STEADY:
        mine = [(row["round"], float(row[name])) for row in rows if row.get(name) is not None]
        middle = statistics.median([value for _, value in mine]) if mine else 0.0
        if middle:
            found = True
            axes[0].plot(
                [n for n, _ in mine], [value / middle for _, value in mine], label=STEADY[name], linewidth=1
            )
    if not found:
        raise NothingToDrawError("no row has a hit rate, memory or latency")
    axes[0].set_xlabel("round")
    axes[0].set_ylabel("relative to the median")
    axes[0].legend(fontsize=8)
