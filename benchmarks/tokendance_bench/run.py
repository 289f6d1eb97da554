"""One benchmark's run: rows are written as they finish, progress is shown with the time left.

```python
with Run("prefill", args.out, headline, about, steps=12) as run:
    run.doing("round 4, vllm")
    run.add({"system": "vllm", "seconds": 3.2})
return run.finished()
```

`OUT/results.json` exists from the first row on. When the run is interrupted, or fails, what was measured stays in it,
with the headline as far as the rows allow and `"complete": false` in its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tokendance_bench.results import table, write_results

Row = dict[str, Any]
Headline = Callable[[Sequence[Row]], Mapping[str, Any]]
"""All rows so far -> the named numbers; a number whose rows are missing is left out."""


class Run:
    """The rows of one benchmark, on their way to `out/results.json`.

    Args:
        name: of the benchmark.
        out: folder of the results.
        headline: makes the named numbers from the rows.
        environment: where and with what was measured; see `environment.environment`.
        steps: how many rows are expected; may be changed while running.
    """

    def __init__(
        self, name: str, out: Path, headline: Headline, environment: Mapping[str, Any], steps: int
    ) -> None:
        self.rows: list[Row] = []
        self._now = ""
        self.path = out / "results.json"
        self._name, self._out, self._headline, self._environment = name, out, headline, dict(environment)
        self.console = Console()
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left:"), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task = self._progress.add_task(name, total=steps)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if not self.rows:
            return
        self._write(complete=kind is None)
        self.console.print(table("headline", [self.headline()]))
        how = "written to" if kind is None else f"stopped ({kind.__name__}); {len(self.rows)} rows kept in"
        self.console.print(f"{how} {self.path}", markup=False, soft_wrap=True)

    def doing(self, what: str) -> None:
        """Say what is being measured now."""
        self._progress.update(self._task, description=f"{self._name}: {what}")
        if not self.console.is_terminal and what != self._now:
            self.console.print(f"{self._name}: {what}", markup=False, highlight=False)
        self._now = what

    def expect(self, steps: int) -> None:
        """Change how many rows are expected."""
        self._progress.update(self._task, total=steps)

    def add(self, row: Mapping[str, Any], *, quiet: bool = False) -> None:
        """Keep a finished row: written at once, and shown (unless `quiet`: one of very many)."""
        self.rows.append(dict(row))
        self._write(complete=False)
        if not quiet:
            self.console.print(table("", [self.rows[-1]]))
        self._progress.advance(self._task)

    def headline(self) -> Row:
        """The named numbers of the rows so far."""
        return dict(self._headline(self.rows))

    def _write(self, complete: bool) -> None:
        write_results(self._out, self.headline(), self.rows, {**self._environment, "complete": complete})


def read_rows(path: Path, seen: int = 0) -> list[Row]:
    """The whole lines of a file of rows (JSON, one a line) after the first `seen`; none if it is not there yet."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
    return [json.loads(line) for line in lines[seen:]]


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file of rows, so that a reader sees whole lines only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
