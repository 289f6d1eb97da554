"""What a benchmark writes: `results.json` with headline, rows and environment, and tables on the screen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


class ResultsError(ValueError):
    """A results file is not what a benchmark writes; the message names file, fault and what is allowed."""


@dataclass(frozen=True, slots=True)
class Results:
    """A results file as read."""

    headline: dict[str, Any]
    rows: list[dict[str, Any]]
    environment: dict[str, Any]

    @property
    def complete(self) -> bool:
        """False where the run was interrupted or failed (files that do not say were written at the end)."""
        return bool(self.environment.get("complete", True))


def write_results(
    out: Path, headline: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]
) -> Path:
    """Write `out/results.json` in one go (a reader never sees half of it) and return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    content = {"headline": dict(headline), "rows": [dict(r) for r in rows], "environment": dict(environment)}
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def read_results(path: Path) -> Results:
    """Read a results file.

    Raises:
        ResultsError: it is missing, not JSON, or lacks headline, rows or environment.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {error}") from error
    shape = {"headline": dict, "rows": list, "environment": dict}
    for key, kind in shape.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise ResultsError(f"{path} has no {key!r} ({kind.__name__}); expected {', '.join(shape)}")
    return Results(content["headline"], content["rows"], content["environment"])


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows as a table; a single row with many columns stands upright. Columns are the keys of all rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(rows) == 1 and len(columns) > 8:
        upright = Table("name", "value", title=title)
        for key, value in rows[0].items():
            upright.add_row(key.replace("_", " "), shown(value))
        return upright
    flat = Table(*(column.replace("_", " ") for column in columns), title=title)
    for row in rows:
        flat.add_row(*(shown(row.get(column)) for column in columns))
    return flat


def shown(value: Any) -> str:
    """A value for people."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table."""
    Console().print(table(title, rows))
