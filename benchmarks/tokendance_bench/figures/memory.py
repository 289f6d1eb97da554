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
    """Left: dense over stored bytes; right: changed pages of a stored member, each by what the row is called."""
    labels = ("case", "family", "workload", "system", "level")
    label = next((key for key in labels if any(key in row for row in rows)), None)
    if label is None:
        raise NothingToDrawError(f"no row has one of {', '.join(labels)}")
    for at, (columns, what) in enumerate(
        (
            (("ratio", "family_ratio", "mirror_ratio", "compression"), "dense bytes / stored bytes"),
            (("changed_pages", "changed"), "changed pages per agent"),
        )
    ):
        column = next((key for key in columns if any(row.get(key) is not None for row in rows)), None)
        if column is None:
            raise NothingToDrawError(f"no row has one of {', '.join(columns)}")
        values = {name: statistics.median(each) for name, each in by(rows, label, column).items()}
        bars(axes[at], [str(name) for name in values], list(values.values()))
        axes[at].set_ylabel(what)


def restore(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: milliseconds of both ways by agents (dense dashed); right: how many times faster fused is."""
    dense = {n: statistics.median(each) for n, each in sorted(by(rows, "agents", "dense_ms").items())}
    fused = {n: statistics.median(each) for n, each in sorted(by(rows, "agents", "fused_ms").items())}
    axes[0].plot(list(dense), list(dense.values()), "s--", color="#1f77b4", label="dense")
    axes[0].plot(list(fused), list(fused.values()), "o-", color="#ff7f0e", label="fused")
    axes[0].set_xlabel("agents")
    axes[0].set_ylabel("milliseconds per agent")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    both = [n for n in dense if n in fused]
    axes[1].plot(both, [dense[n] / fused[n] for n in both], "o-", color="#ff7f0e")
    axes[1].axhline(1, linestyle="--", color="grey", linewidth=1)
    axes[1].set_xlabel("agents")
    axes[1].set_ylabel("speed-up of fused (below 1: slower)")
    axes[1].set_ylim(bottom=0)
