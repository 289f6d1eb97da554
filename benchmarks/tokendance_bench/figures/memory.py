"""Pictures of memory: similarity (3), pages, storage (12), restore (13)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_bench.figures.style import NothingToDrawError, bars
from tokendance_bench.figures.time import Rows, by


def similarity(rows: Rows, axes: Sequence[Any]) -> None:
    """Similarity over the pages of a member, one line each agent or level."""
    series = next((key for key in ("agent", "level", "system") if any(key in row for row in rows)), None)
    if series is None:
        raise NothingToDrawError("no row names an agent, a level or a system")
    for name in by(rows, series, "similarity"):
        mine = [row for row in rows if row.get(series) == name and row.get("similarity") is not None]
        axes[0].plot(
            [row.get("page", n) for n, row in enumerate(mine)],
            [row["similarity"] for row in mine],
            label=str(name),
        )
    axes[0].set_xlabel("page of the shared region")
    axes[0].set_ylabel("similarity of its KV")
    axes[0].legend(fontsize=7)


def pages(rows: Rows, axes: Sequence[Any]) -> None:
    """Members in vLLM's batch at the same time, by system."""
    small = [row for row in rows if row.get("part", "pages") == "pages"]
    most = {name: max(each) for name, each in by(small, "system", "running_at_once").items()}
    bars(axes[0], list(most), list(most.values()), ".0f")
    axes[0].set_ylabel("agents running at once (higher is better)")


def storage(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: dense over stored bytes of families, ours and the paper's layout; right: changed pages of a member."""
    last: dict[str, dict[str, Any]] = {}
    for row in rows:  # of each workload and fidelity the last round that was played
        if row.get("ratio") is not None:
            last[", ".join(str(row[key]) for key in ("workload", "fidelity") if key in row)] = row
    if not last:
        raise NothingToDrawError("no row has a ratio")
    names = list(last)[::-1]
    places = range(len(names))
    ours = axes[0].barh(places, [last[name]["ratio"] for name in names], 0.4, color="#ff7f0e", label="ours")
    axes[0].bar_label(ours, fmt="%.2f", fontsize=7)
    theirs = [(n, last[name].get("paper_layout_ratio")) for n, name in enumerate(names)]
    known = [(n, ratio) for n, ratio in theirs if ratio is not None]
    if known:
        axes[0].barh(
            [n - 0.4 for n, _ in known],
            [r for _, r in known],
            0.35,
            color="#1f77b4",
            label="one member as master",
        )
        axes[0].legend(fontsize=7)
    axes[0].set_xlabel("dense bytes / stored bytes (higher is better)")
    changed = [100 * last[name]["changed_blocks_median"] for name in names]
    axes[1].bar_label(axes[1].barh(places, changed, 0.6, color="#ff7f0e"), fmt="%.1f", fontsize=7)
    axes[1].set_xlabel("changed pages of the median agent, % of all (the paper: 8 to 12 %)")
    axes[0].set_yticks(places, names, fontsize=6)
    axes[1].set_yticks(places, [""] * len(names))
    for each in axes:
        each.grid(visible=False, axis="y")
        each.margins(x=0.15)
        each.set_ylim(-0.8, len(names) - 0.5)


def restore(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: milliseconds per member of both ways and of a plain copy; right: how many times faster fused is."""
    taken = {
        way: {int(n): statistics.median(ms) / n for n, ms in sorted(by(rows, "members", f"{way}_ms").items())}
        for way in ("dense", "fused")
    }
    styles = {"dense": ("s--", "#1f77b4"), "fused": ("o-", "#ff7f0e"), "copy": ("x:", "#7f7f7f")}
    if any(row.get("copy_ms") is not None for row in rows):
        copies = by(rows, "members", "copy_ms")
        taken["copy"] = {int(n): statistics.median(ms) / n for n, ms in sorted(copies.items())}
    for way, each in taken.items():
        form, shade = styles[way]
        label = "plain copy of as many bytes" if way == "copy" else way
        axes[0].plot(list(each), list(each.values()), form, color=shade, label=label)
    axes[0].set_ylabel("milliseconds per agent (lower is better)")
    axes[0].legend(fontsize=8)
    both = [n for n in taken["dense"] if n in taken["fused"]]
    axes[1].plot(both, [taken["dense"][n] / taken["fused"][n] for n in both], "o-", color="#ff7f0e")
    axes[1].axhline(1, linestyle="--", color="grey", linewidth=1)
    axes[1].set_ylabel("speed-up of fused (below 1: slower)")
    for each_axes in axes:
        each_axes.set_xlabel("agents restored together")
        each_axes.set_xticks(both)
        each_axes.set_ylim(bottom=0)
