"""The report: every benchmark's question, answer, picture and rows on one page that needs no other file.

It is written for readers who know nothing of the paper. What was not measured is said to be missing, and what is worse
than what it is compared with is said first.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendance_bench import figures
from tokendance_bench.registry import BENCHMARKS, Benchmark
from tokendance_bench.results import Results, ResultsError, read_results, shown
from tokendance_bench.systems import SYSTEMS
from tokendance_bench.verdict import losing

TEMPLATE = Path(__file__).with_name("report.html.jinja")
MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as it stands on the page; `data` is base64 of its PNG, "" with the reason in `missing`."""

    figure: figures.Figure
    data: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark on the page.

    Attributes:
        missing: why there is nothing to show, "" if there is.
        losing: headline numbers on the losing side, in words.
    """

    benchmark: Benchmark
    results: Results | None
    missing: str
    pictures: tuple[Picture, ...]
    losing: Mapping[str, str]

    @property
    def columns(self) -> list[str]:
        """Columns of its rows."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that the page shows."""
        return self.results.rows[:MOST_ROWS] if self.results else []


def sections(folder: Path) -> list[Section]:
    """What the folder holds, benchmark by benchmark; draws the pictures beside the results."""
    return [section(each, folder) for each in BENCHMARKS.values()]


def section(benchmark: Benchmark, folder: Path) -> Section:
    """One benchmark's part of the page."""
    path = next(
        (
            p
            for p in (folder / benchmark.name / "results.json", folder / f"{benchmark.name}.json")
            if p.exists()
        ),
        None,
    )
    if path is None:
        why = "not measured" if benchmark.available else "not part of this version"
        return Section(benchmark, None, why, (), {})
    try:
        results = read_results(path)
    except ResultsError as error:
        return Section(benchmark, None, str(error), (), {})
    pictures = tuple(_picture(figure, results, path.parent) for figure in figures.of(benchmark.name))
    return Section(benchmark, results, "", pictures, losing(results.headline))


def _picture(figure: figures.Figure, results: Results, folder: Path) -> Picture:
    try:
        path = figures.draw(figure, results.rows, folder / f"{figure.name}.png")
    except figures.NothingToDrawError as error:
        return Picture(figure, missing=f"not drawn: {error}")
    return Picture(figure, data=base64.b64encode(path.read_bytes()).decode("ascii"))


def write_report(folder: Path, to: Path) -> Path:
    """Write the page about the results below `folder` to `to` and return it.

    Raises:
        ModuleNotFoundError: matplotlib or jinja2 is missing (the `bench` extra).
    """
    import jinja2

    found = sections(folder)
    engine = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    engine.filters["shown"] = shown
    page = engine.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        sections=found,
        measured=[each for each in found if each.results],
        missing=[each for each in found if not each.results],
        systems=used(found),
        environment=_common([each.results.environment for each in found if each.results]),
    )
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page, encoding="utf-8")
    return to


def used(found: Sequence[Section]) -> dict[str, str]:
    """System -> what it is, of all systems that occur in rows."""
    names = {
        str(row["system"]).replace(" ", "-")
        for each in found
        if each.results
        for row in each.rows
        if "system" in row
    }
    return {name: system.what for name, system in SYSTEMS.items() if name in names}


def _common(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all environments agree on, and the different values of what they do not."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in environments for key in each):
        if key in ("settings", "complete"):
            continue
        values = [each[key] for each in environments if key in each]
        distinct = [value for n, value in enumerate(values) if value not in values[:n]]
        found[key] = distinct[0] if len(distinct) == 1 else distinct
    return found
