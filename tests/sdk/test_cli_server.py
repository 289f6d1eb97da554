"""Servers that a command starts: up when the block runs, gone with all their children when it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokendance_sdk import cli_server
from tokendance_sdk.cli_server import ServerStartError, running_server, stop_group

SERVER = """#!{python}
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, "arguments", *sys.argv[1:], flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `vllm` command that answers /health and has a child of its own, as vLLM has its engine."""
    script = tmp_path / "vllm"
    script.write_text(SERVER.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(cli_server, "vllm_command", lambda: str(script))
    return script


def child_of(log: Path) -> int:
    return int(log.read_text().split()[1])


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.usefixtures("fake_vllm")
def test_a_started_server_and_its_children_are_gone_after_the_block(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server("the-model", ["--dtype", "float32"], log) as url:
        assert url.endswith("/v1")
        child = child_of(log)
        assert is_alive(child)
        assert "arguments serve the-model --host 127.0.0.1 --port" in log.read_text()
    assert not is_alive(child)


@pytest.mark.usefixtures("fake_vllm")
def test_an_interrupted_block_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupted() -> None:
        with running_server("m", [], log):
            assert is_alive(child_of(log))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_alive(child_of(log))


def test_a_server_that_dies_at_start_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "vllm"
    script.write_text("#!/bin/sh\necho no such model\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(cli_server, "vllm_command", lambda: str(script))
    with pytest.raises(ServerStartError, match=r"(?s)status 3.*no such model"):
        with running_server("m", [], tmp_path / "log"):
            pass


def test_a_group_that_ignores_a_polite_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_server, "STOP_SECONDS", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    stop_group(process)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


def test_a_terminated_command_takes_its_server_along(tmp_path: Path, fake_vllm: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tokendance_sdk import cli, cli_server\n"
        "from tokendance_sdk import cli_demo\n"
        f"cli_server.vllm_command = cli_demo.vllm_command = lambda: {str(fake_vllm)!r}\n"
        "cli_demo._run = lambda *a: run()\n"
        "cli_demo._graph_player = lambda: None\n"
        "def run():\n"
        f"    with cli_server.running_server('m', [], Path({str(tmp_path / 'log')!r})):\n"
        "        print('up', flush=True)\n"
        "        time.sleep(600)\n"
        "sys.argv = ['tokendance', 'demo', '--model', 'm']\n"
        "cli.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    child = child_of(tmp_path / "log")
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    process.stdout.close()
    end = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < end:
        pass
    assert not is_alive(child)


def test_serve_without_vllm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerStartError, match=r"pip install 'tokendance\[engine\]'"):
        cli_server.vllm_command()
