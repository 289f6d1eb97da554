"""Pictures of servers under load: motivation (2), capacity (10), collective (11)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tokendance_bench.figures.style import NothingToDrawError, colour
from tokendance_bench.figures.time import Rows, by


def motivation(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: latency of every sub-request in order of its start; right: most KV in use at a time."""
    colours = {"rounds": "#d62728", "independent": "#1f77b4"}
    for kind in by(rows, "kind", "latency_s"):
        mine = sorted(
            (r["index"], r["latency_s"]) for r in rows if r.get("kind") == kind and "latency_s" in r
        )
        axes[0].plot(*zip(*mine, strict=True), ".", label=kind, color=colours.get(kind), alpha=0.7)
    axes[0].set_xlabel("request, in order of sending")
    axes[0].set_ylabel("latency in seconds")
    axes[0].legend(fontsize=8)
    peaks = {kind: max(values) for kind, values in by(rows, "kind", "peak_kv_share").items()}
    drawn = axes[1].bar(
        range(len(peaks)), [100 * v for v in peaks.values()], color=[colours.get(k) for k in peaks], width=0.5
    )
    axes[1].bar_label(drawn, [f"{100 * value:.1f} %" for value in peaks.values()])
    axes[1].set_xticks(range(len(peaks)), list(peaks))
    axes[1].set_ylabel("most KV pages held at a time, % of the pool")
    axes[1].set_ylim(0, 110)


def capacity(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: round latency by agents at one load, with the target; right: agents within the target by load."""
    served = [row for row in rows if row.get("latency_s") is not None and row.get("load") is not None]
    if not served:
        raise NothingToDrawError("no row has a latency and a load")
    loads = sorted({row["load"] for row in served})
    shown = loads[len(loads) // 2]
    names = list(dict.fromkeys(row["system"] for row in served))
    slo = next((row["slo_s"] for row in served if row.get("slo_s")), None)
    for name in names:
        points = sorted(
            (r["agents"], r["latency_s"]) for r in served if r["system"] == name and r["load"] == shown
        )
        if points:
            axes[0].plot(*zip(*points, strict=True), "o-", label=name, color=colour(name))
        most = [
            max(
                (r["agents"] for r in served if (r["system"], r["load"]) == (name, load) and within(r)),
                default=0,
            )
            for load in loads
        ]
        axes[1].plot(loads, most, "o-", label=name, color=colour(name))
    if slo:
        axes[0].axhline(slo, linestyle="--", color="black", linewidth=1)
        axes[0].text(
            0, slo, f" target {slo:.2f} s", va="bottom", fontsize=8, transform=axes[0].get_yaxis_transform()
        )
    axes[0].set_xlabel(f"agents in a round, at {shown:g} times plain vLLM's own rate with 3 agents")
    axes[0].set_ylabel("median round latency in seconds")
    axes[0].legend(fontsize=8)
    axes[1].set_xlabel("offered load, times plain vLLM's own rate with 3 agents")
    axes[1].set_ylabel("most agents within the target")
    axes[1].set_ylim(0, 1 + max(row["agents"] for row in served))
    axes[1].legend(fontsize=8)


def within(row: dict[str, Any]) -> bool:
    """Whether a measured point keeps the target."""
    return bool(row["latency_s"] <= row["slo_s"])


def collective(rows: Rows, axes: Sequence[Any]) -> None:
    """Seconds of the serial way over the collective one: one line for each number of agents, by load."""
    pairs: dict[int, dict[Any, dict[str, list[float]]]] = {}
    for row in rows:
        if row.get("pair") == "balanced":
            by_load = pairs.setdefault(row["agents"], {}).setdefault(row["load"], {})
            by_load.setdefault(row["execution"], []).append(row["seconds"])
    lines = {
        agents: [
            (load, statistics.median(each["serial"]) / statistics.median(each["collective"]))
            for load, each in sorted(loads.items())
            if {"serial", "collective"} <= set(each)
        ]
        for agents, loads in sorted(pairs.items())
    }
    if not any(lines.values()):
        raise NothingToDrawError("no load was measured both serially and collectively")
    if max(map(len, lines.values())) == 1:
        points = [(agents, line[0][1]) for agents, line in lines.items() if line]
        axes[0].plot(*zip(*points, strict=True), "o-", color=colour("tokendance-balanced"))
        axes[0].set_xlabel("agents in a round (one round at a time)")
    else:
        for agents, line in lines.items():
            axes[0].plot(*zip(*line, strict=True), "o-", label=f"{agents} agents")
        axes[0].set_xlabel("offered load, times what the serial way serves alone")
        axes[0].legend(fontsize=8)
    axes[0].axhline(1, linestyle="--", color="grey", linewidth=1)
    axes[0].set_ylabel("speed-up over serial (below 1: slower)")
    axes[0].set_ylim(bottom=0)
