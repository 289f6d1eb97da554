"""What a benchmark writes: `results.json` with headline, rows and environment, and a table on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def write_results(
    out: Path, headline: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]
) -> Path:
    """Write `out/results.json` and return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    content = {"headline": dict(headline), "rows": [dict(r) for r in rows], "environment": dict(environment)}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; columns are the keys of the first row."""
    table = Table(title=title)
    for key in rows[0]:
        table.add_column(key.replace("_", " "))
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
