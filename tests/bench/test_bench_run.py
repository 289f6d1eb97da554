"""Results of a benchmark: written as rows finish, kept when it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokendance_bench.children import ChildError, rows_of
from tokendance_bench.results import ResultsError, read_results
from tokendance_bench.run import Run, append_row, read_rows


def most(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"most": max(row["n"] for row in rows)}


def test_rows_are_on_disk_before_the_run_ends(tmp_path: Path) -> None:
    with Run("x", tmp_path, most, {"cpu": "c"}, 2) as run:
        run.add({"n": 1})
        half = read_results(tmp_path / "results.json")
        assert half.rows == [{"n": 1}]
        assert not half.complete
        run.add({"n": 5})
    whole = read_results(tmp_path / "results.json")
    assert whole.headline == {"most": 5}
    assert whole.environment == {"cpu": "c", "complete": True}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def interrupted(run: Run, error: type[BaseException]) -> None:
    with run:
        run.add({"n": 2})
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupted_run_keeps_its_rows_and_says_so(tmp_path: Path, error: type[BaseException]) -> None:
    run = Run("x", tmp_path, most, {}, 3)
    with pytest.raises(error):
        interrupted(run, error)
    kept = read_results(tmp_path / "results.json")
    assert kept.rows == [{"n": 2}]
    assert kept.headline == {"most": 2}
    assert not kept.complete


def test_a_run_without_rows_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Run("x", tmp_path, most, {}, 1):
        raise RuntimeError
    assert not (tmp_path / "results.json").exists()


def test_a_half_written_line_is_no_row_yet(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    append_row(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2')
    assert read_rows(path) == [{"a": 1}]
    with path.open("a") as file:
        file.write("}\n")
    assert read_rows(path, 1) == [{"a": 2}]


CHILD = """
import sys
from pathlib import Path
from tokendance_bench.run import append_row
out = Path(sys.argv[sys.argv.index("--out") + 1])
for n in range(int(sys.argv[1])):
    append_row(out / "rows.jsonl", {"n": n})
print("the reason")
raise SystemExit(int(sys.argv[2]))
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_child.py").write_text(CHILD)
    import tokendance_bench

    package = Path(tokendance_bench.__file__).parents[1]
    sdk = package.parent / "sdk"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{package}:{sdk}")
    return "a_child"


def test_rows_of_a_child_process_arrive(child: str, tmp_path: Path) -> None:
    assert list(rows_of(child, ["3", "0"], tmp_path / "log")) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_childs_rows_come_before_its_failure_which_shows_its_log(child: str, tmp_path: Path) -> None:
    rows = rows_of(child, ["2", "3"], tmp_path / "log")
    assert [next(rows), next(rows)] == [{"n": 0}, {"n": 1}]
    with pytest.raises(ChildError, match=r"status 3[\s\S]*the reason"):
        next(rows)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"headline": {}, "rows": {}, "environment": {}})])
def test_a_broken_results_file_names_itself(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match=r"results\.json"):
        read_results(path)
