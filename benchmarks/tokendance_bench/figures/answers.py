"""Pictures of answers: fidelity (14), flips, pareto, judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokendance_bench.figures.style import NothingToDrawError, bars, colour
from tokendance_bench.figures.time import Rows, by


def fidelity(rows: Rows, axes: Sequence[Any]) -> None:
    """Left: KL of one round by level, with its interval; right: KL round after round of contexts that keep all."""
    single = [row for row in rows if _context(row) == "single"]
    drifting = [row for row in rows if _context(row) == "transcript"]
    if not rows:
        raise NothingToDrawError("no rows")
    if single:
        intervals = [_interval(row) for row in single]
        bars(axes[0], [row["level"] for row in single], [row["kl"] for row in single], intervals=intervals)
    axes[0].set_ylabel("KL divergence to full prefill (lower is better)")
    for workload, level in dict.fromkeys((row["workload"], row["level"]) for row in drifting):
        mine = [row for row in drifting if (row["workload"], row["level"]) == (workload, level)]
        name = level.removesuffix(", transcript").removesuffix(" transcript")
        axes[1].plot(
            [row["round"] for row in mine], [row["kl"] for row in mine], "o-", label=f"{workload}, {name}",
            color=colour(name),
        )  # fmt: skip
    axes[1].set_xlabel("round (each stands on the approximate history of those before)")
    axes[1].set_ylabel("KL divergence to full prefill")
    axes[1].set_ylim(bottom=0)
    if drifting:
        axes[1].legend(fontsize=8)


def greedy(rows: Rows, axes: Sequence[Any]) -> None:
    """Rounds before the first different answer: groups of bars, one group a workload, one bar a level."""
    mine = [row for row in rows if _context(row) == "greedy"]
    if not mine:
        raise NothingToDrawError("no row was measured greedily")
    groups = list(dict.fromkeys(row["workload"] for row in mine))
    levels = list(dict.fromkeys(row["level"] for row in mine))
    width = 0.8 / len(levels)
    for place, level in enumerate(levels):
        each = {row["workload"]: row["rounds_same"] for row in mine if row["level"] == level}
        at = [groups.index(workload) + (place - (len(levels) - 1) / 2) * width for workload in each]
        drawn = axes[0].bar(at, list(each.values()), width * 0.92, label=level, color=colour(level))
        axes[0].bar_label(drawn, fontsize=8)
    for group, workload in enumerate(groups):
        played = next(row["rounds"] for row in mine if row["workload"] == workload)
        axes[0].hlines(played, group - 0.45, group + 0.45, color="black", linestyle="--", linewidth=1)
    axes[0].set_xticks(range(len(groups)), groups, fontsize=8)
    axes[0].set_ylabel("rounds before the first different answer")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _interval(row: dict[str, Any]) -> tuple[float, float]:
    """Older results have none."""
    return float(row["kl_low" if "kl_low" in row else "kl"]), float(
        row["kl_high" if "kl_high" in row else "kl"]
    )


def _context(row: dict[str, Any]) -> str:
    """Older results say it in the level's name."""
    return str(row.get("context") or ("transcript" if "transcript" in row["level"] else "single"))


def pareto(rows: Rows, axes: Sequence[Any]) -> None:
    """One dot a setting: computed share of the prompt against KL; settings of one backend are joined."""
    backends = dict.fromkeys(row["backend"] for row in rows)
    if not backends:
        raise NothingToDrawError("no rows")
    for backend in backends:
        mine = sorted((r for r in rows if r["backend"] == backend), key=lambda r: r["computed_share"])
        across = [100 * row["computed_share"] for row in mine]
        axes[0].plot(across, [max(row["kl"], 1e-7) for row in mine], "o-", label=backend)
        for at, row in zip(across, mine, strict=True):
            axes[0].annotate(
                row["setting"],
                (at, max(row["kl"], 1e-7)),
                fontsize=7,
                xytext=(4, 4),
                textcoords="offset points",
            )
    axes[0].set_yscale("log")
    axes[0].set_xlabel("tokens computed for an agent, % of its prompt beyond the cached history")
    axes[0].set_ylabel("KL divergence to full prefill (log scale)")
    axes[0].legend(fontsize=8)


def judge(rows: Rows, axes: Sequence[Any]) -> None:
    """Share of choices that flipped, with Wilson intervals."""
    flipped = by(rows, "system", "flips")
    choices = by(rows, "system", "choices")
    totals = {name: (int(sum(flipped[name])), int(sum(choices[name]))) for name in flipped}
    _shares(axes[0], totals, "share of choices that flipped")


def flips(rows: Rows, axes: Sequence[Any]) -> None:
    """Share of decisions in debates that flipped, with Wilson intervals."""
    mine = [row for row in rows if _context(row) == "flips"]
    if not mine:
        raise NothingToDrawError("no decision was measured")
    flipped, decided = by(mine, "level", "flips"), by(mine, "level", "decisions")
    totals = {level: (int(sum(flipped[level])), int(sum(decided[level]))) for level in flipped}
    _shares(axes[0], totals, "share of decisions that differ from full prefill's")


def _shares(axes: Any, totals: Mapping[str, tuple[int, int]], label: str) -> None:
    """One bar a name: the first number as a share of the second."""
    from tokendance_bench import stats

    shares = [hits / of for hits, of in totals.values()]
    bars(axes, list(totals), shares, intervals=[stats.wilson(*total) for total in totals.values()])
    axes.set_ylabel(label)
