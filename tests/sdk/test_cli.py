"""The command line: what it prints, how it ends, and that servers it starts are gone afterwards."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, serving
from rich.console import Console
from tokendance_sdk import __version__, cli, cli_server
from tokendance_sdk.cli_tables import status_table

COMMANDS = (["serve"], ["replay"], ["status"], ["model"], ["model", "smollm2"], ["demo"])


def tokendance(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run in this process: starting one a test would take most of a minute."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    status: Any = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["tokendance", *arguments])
        patch.setenv("COLUMNS", "120")
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        yield server


@pytest.fixture
def plain() -> Iterator[FakeServer]:
    with serving(FakeServer(knows_rounds=False)) as server:
        yield server


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_shows_an_example(command: list[str]) -> None:
    done = tokendance(*command, "--help")
    assert done.returncode == 0
    assert f"Example:  tokendance {' '.join(command)}" in done.stdout


def test_the_version_is_printed() -> None:
    command = [sys.executable, "-m", "tokendance_sdk.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"tokendance {__version__}"


def test_wrong_usage_ends_with_status_2() -> None:
    assert tokendance("replay").returncode == 2
    assert tokendance("replay", "x", "--fidelity", "perfect").returncode == 2


def test_an_unknown_workload_ends_with_status_1_and_lists_the_known_ones() -> None:
    done = tokendance("replay", "nonsense")
    assert done.returncode == 1
    assert "ga-ville3-valentine" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_ends_with_status_1_and_its_address() -> None:
    address = f"http://127.0.0.1:{cli_server.free_port()}/v1"
    done = tokendance("status", "--base-url", address)
    assert done.returncode == 1
    assert f"no answer from {address.removesuffix('/v1')}/tokendance/v1/status" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_prints_json_on_request(fake: FakeServer) -> None:
    done = tokendance("status", "--base-url", fake.base_url, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"version": "0", "protocol_version": 1}


def test_status_is_a_table_with_one_line_per_value(fake: FakeServer) -> None:
    done = tokendance("status", "--base-url", fake.base_url)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert rows == [["version", "0"], ["protocol_version", "1"]]


def test_nested_values_of_a_status_stand_under_their_path() -> None:
    engine = {"features": {"reuse": True}, "model": ["a", "b"], "why": None, "families": []}
    screen = Console(width=60, file=io.StringIO())
    screen.print(status_table({"engine": engine}))
    rows = [line.split(maxsplit=1) for line in screen.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["engine.features.reuse", "true"],
        ["engine.model", "a, b"],
        ["engine.why", "null"],
        ["engine.families", "[]"],
    ]


def test_status_of_a_plain_server_is_1(plain: FakeServer) -> None:
    done = tokendance("status", "--base-url", plain.base_url)
    assert done.returncode == 1
    assert "no TokenDance engine" in done.stderr


def replayed(server: FakeServer, *options: str) -> subprocess.CompletedProcess[str]:
    where = ("--base-url", server.base_url, "--model", "m")
    return tokendance("replay", "ga-ville3-valentine", *where, "--rounds", "3", *options)


def test_a_replay_sends_one_request_a_round_with_the_recorded_outputs(fake: FakeServer) -> None:
    done = replayed(fake, "--json")
    assert done.returncode == 0, done.stderr
    bodies = fake.bodies("/v1/rounds")
    assert [len(body["agents"]) for body in bodies] == [3, 3, 3]
    path = Path(__file__).parents[2] / "benchmarks" / "workloads" / "ga-ville3-valentine.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    recorded = [line["outputs"] for line in lines if line.get("kind") == "round"]
    assert set(recorded[0].values()) <= set(bodies[1]["blocks"].values())
    assert set(recorded[1].values()) <= set(bodies[2]["blocks"].values())
    assert not bodies[0]["blocks"]


def test_the_rows_are_sums_over_the_agents(fake: FakeServer) -> None:
    found = json.loads(replayed(fake, "--json").stdout)
    rows = found["replay"]["rows"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["agents"] == 3
        assert row["reused_tokens"] == 21
        assert row["prompt_tokens"] == row["reused_tokens"] + row["fresh_tokens"]
        assert row["wall_ms"] > 0
        assert len(row["outputs"]) == 3
    assert found["replay"]["cut"] == "first 3 rounds"
    assert found["compare"] is None


def test_a_comparison_shows_the_same_rounds_on_a_plain_server(fake: FakeServer, plain: FakeServer) -> None:
    done = replayed(fake, "--compare", plain.base_url, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["replay"]["plain"], found["compare"]["plain"]) == (False, True)
    ours, other = found["replay"]["rows"], found["compare"]["rows"]
    assert [row["prompt_tokens"] for row in ours] == [row["prompt_tokens"] for row in other]
    assert [row["reused_tokens"] for row in other] == [0, 0, 0]
    assert all(body["ignore_eos"] for body in plain.bodies("/v1/chat/completions"))
    assert "knows nothing of rounds" not in done.stderr


def test_tables_name_workload_cut_and_totals(fake: FakeServer, plain: FakeServer) -> None:
    done = replayed(fake, "--compare", plain.base_url)
    for text in (
        "ga-ville3-valentine through the SDK, first 3 rounds",
        "recomputed",
        "63",
        "plain server",
        "TokenDance ms",
    ):
        assert text in done.stdout


def test_generated_texts_are_shown_on_request_only(fake: FakeServer) -> None:
    assert "Klaus_Mueller: re: " not in replayed(fake).stdout
    assert "round 2  Klaus_Mueller: re: " in replayed(fake, "-v").stdout


def test_a_failed_member_is_shown_and_ends_with_status_1(fake: FakeServer) -> None:
    fake.failing = {"Maria_Lopez": 500}
    done = replayed(fake)
    assert done.returncode == 1
    assert "Maria_Lopez failed: refused with 500" in " ".join(done.stdout.split())


def test_a_cut_by_tokens_on_a_server_without_tokenizer_says_what_to_leave_out(fake: FakeServer) -> None:
    done = replayed(fake, "--block-tokens", "10")
    assert done.returncode == 1
    assert "leave out --history-tokens and --block-tokens" in done.stderr


def test_the_benchmarks_say_how_to_install_them_where_they_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("tokendance_bench", "tokendance_bench.cli"):
        monkeypatch.setitem(sys.modules, name, None)
    done = tokendance("bench", "prefill")
    assert done.returncode == 1
    assert "pip install 'tokendance[bench]'" in done.stderr


def test_serve_runs_vllm_with_the_plugin_and_passes_everything_on(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from tokendance_sdk import cli, cli_server\n"
        "cli_server.vllm_command = lambda: '/bin/echo'\n"
        "sys.argv = ['tokendance', 'serve', 'M', '--port', '9', '--tokendance-gather-ms', '5']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "serve M --plugin tokendance_engine --port 9 --tokendance-gather-ms 5"
