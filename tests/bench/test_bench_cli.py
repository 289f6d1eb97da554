"""`tokendance bench`: the list, one, all, and their exit statuses."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokendance_bench import cli, registry, run_all
from tokendance_bench.children import ChildError
from tokendance_bench.registry import Benchmark

NEED_ENGINE = (
    "prefill",
    "motivation",
    "capacity",
    "collective",
    "fidelity",
    "judge",
    "layouts",
    "pareto",
    "overhead",
)


def test_the_list_names_every_benchmark_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for each in registry.available().values():
        assert each.name in shown
        assert each.question.split()[0] in shown
    assert "report" in shown


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prefil"]) == 2
    assert "prefill" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("no", name="vllm"), "pip install 'tokendance[engine-cpu]'"),
        (ChildError("it ended"), "error: it ended"),
    ],
)
def test_what_people_can_do_something_about_is_said_without_a_traceback(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(path: str) -> None:
        raise error

    monkeypatch.setattr(cli.importlib, "import_module", fails)
    assert cli.main(["prefill"]) == 1
    assert message in capsys.readouterr().err


def test_questions_end_in_a_question_mark_and_names_are_distinct() -> None:
    assert len(registry.BENCHMARKS) == len(registry._ALL)
    assert all(each.question.endswith("?") for each in registry.BENCHMARKS.values())


@pytest.mark.parametrize("name", [*registry.available()])
def test_every_benchmark_has_the_common_options_and_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert {"--out", "--quick", "examples:"} <= set(shown.replace("[", " ").replace("]", " ").split())
    assert f"tokendance bench {name} --quick" in shown
    if name in NEED_ENGINE:
        assert {"--workload", "--agents", "--model"} <= set(shown.replace("[", " ").split())


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Three benchmarks, one of which fails; the commands that are run."""
    names = ("good", "bad", "last")
    all_ = {name: Benchmark(name, "?", module="stats") for name in names}
    monkeypatch.setattr(run_all, "BENCHMARKS", {**all_, "gone": Benchmark("gone", "?", module="nowhere")})
    monkeypatch.setattr(run_all, "available", lambda: all_)
    monkeypatch.setattr(run_all, "report", lambda out: 0)
    commands: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **more: Any) -> Any:
        commands.append(command[3:])
        return real(["false" if "bad" in command else "true"])

    monkeypatch.setattr(run_all.subprocess, "Popen", popen)
    return commands


def test_all_goes_on_after_a_failure_and_says_so(three: list[list[str]], tmp_path: Path) -> None:
    assert run_all.main(["--quick", "--out", str(tmp_path), "--model", "m"]) == 1
    assert three == [
        [name, "--out", str(tmp_path / name), "--quick", "--model", "m"] for name in ("good", "bad", "last")
    ]


def test_all_is_fine_if_nothing_failed(three: list[list[str]], tmp_path: Path) -> None:
    assert run_all.main(["--out", str(tmp_path), "--skip", "bad"]) == 0
    assert [command[0] for command in three] == ["good", "last"]


def test_all_stops_at_an_interrupt(
    three: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "run", lambda name, arguments: run_all.Done(name, 130, 1.0))
    assert run_all.main(["--out", str(tmp_path)]) == 130


def test_a_missing_benchmark_is_no_failure_but_is_said(
    three: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.main(["--out", str(tmp_path), "--only", "gone"]) == 0
    assert three == []
    assert "not in this version" in capsys.readouterr().out
