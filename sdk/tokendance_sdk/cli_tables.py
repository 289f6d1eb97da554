"""Tables of the command line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokendance_sdk.replay import Replay, RoundRow

_TOKENS = ("prompt", "cached", "reused", "recomputed", "fresh")


def rounds_table(played: Replay, title: str) -> Table:
    """One line per round: token sums over its agents, and how long it took."""
    table = Table(
        title=title, caption=_caption(played), caption_justify="left", title_justify="left", box=SIMPLE
    )
    for name in ("round", "agents", *_TOKENS, "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in played.rows:
        counts = (f"{getattr(row, f'{name}_tokens'):,}" for name in _TOKENS)
        table.add_row(str(row.index), str(row.agents), *counts, f"{row.wall_ms:,.0f}")
    table.add_section()
    sums = (f"{sum(getattr(row, f'{name}_tokens') for row in played.rows):,}" for name in _TOKENS)
    table.add_row("all", "", *sums, f"{sum(row.wall_ms for row in played.rows):,.0f}")
    return table


def comparison_table(ours: Replay, other: Replay) -> Table:
    """Round by round: prompt tokens that went through the model, and latency, of both."""
    table = Table(
        title="Prompt tokens computed, and round latency",
        title_justify="left",
        caption="last line: without round 0, which shares nothing; sum of tokens, median latency",
        caption_justify="left",
        box=SIMPLE,
    )
    for name in ("round", "plain", "TokenDance", "less", "plain ms", "TokenDance ms", "faster"):
        table.add_column(name, justify="right", no_wrap=True)
    for a, b in zip(ours.rows, other.rows, strict=True):
        table.add_row(
            str(a.index),
            f"{b.computed_tokens:,}",
            f"{a.computed_tokens:,}",
            _ratio(b.computed_tokens, a.computed_tokens),
            f"{b.wall_ms:,.0f}",
            f"{a.wall_ms:,.0f}",
            _ratio(b.wall_ms, a.wall_ms),
        )
    table.add_section()
    # Round 0 shares nothing and warms both servers up.
    pair = [[row for row in played.rows if row.index > 0] or list(played.rows) for played in (other, ours)]
    computed = [sum(row.computed_tokens for row in rows) for rows in pair]
    times = [median(row.wall_ms for row in rows) for rows in pair]
    table.add_row(
        "1 on",
        *(f"{n:,}" for n in computed),
        _ratio(*computed),
        *(f"{t:,.0f}" for t in times),
        _ratio(*times),
    )
    return table


def _caption(played: Replay) -> str:
    """What was played, and what there is to say about single rounds."""
    length = "exactly" if played.forced_length else "at most"
    about = (
        f"{played.workload} through {played.through}, {played.cut}; context {played.context}, "
        f"layout {played.layout}, fidelity {played.fidelity}; {length} {played.answer_tokens} answer tokens, greedy; "
        "token counts are sums over the agents"
    )
    return "\n".join([about, *(f"round {row.index}: {note}" for row in played.rows if (note := _note(row)))])


def outputs_lines(rows: Sequence[RoundRow]) -> list[str]:
    """The generated texts, one line each."""
    return [
        f"round {row.index}  {agent}: {' '.join(text.split())}"
        for row in rows
        for agent, text in row.outputs.items()
    ]


def _note(row: RoundRow) -> str:
    notes = [f"{count} x {reason}" for reason, count in Counter(row.fallbacks).most_common()]
    return ", ".join([*notes, *(f"{agent} failed: {reason[:60]}" for agent, reason in row.failed.items())])


def status_table(answer: Mapping[str, Any]) -> Table:
    """What a server says about its engine, one line per value; nested values under their path."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for path, value in _leaves(answer):
        table.add_row(path, value)
    return table


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value and not any(isinstance(item, Mapping | list) for item in value):
        yield path, ", ".join(map(str, value))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def _ratio(before: float, after: float) -> str:
    return f"{before / after:.2f}x" if after else "-"
