"""A real vLLM server for tests: started in its own process group, killed with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 300
REPOSITORY = Path(__file__).resolve().parents[2]
SERVED_NAME = "demo"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, parsed JSON (or text), headers in lower case."""

    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    log: Path
    pid: int
    api_key: str | None = None

    def request(
        self,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
        key: str | None = None,
        timeout: float = 120,
    ) -> Answer:
        """One HTTP request; errors are answers too. `body`: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        if key or self.api_key:
            sent["authorization"] = f"Bearer {key or self.api_key}"
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return _answer(response.status, response.read(), response.headers)
        except urllib.error.HTTPError as error:
            return _answer(error.code, error.read(), error.headers)

    def chat(self, text: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A greedy chat request with one user message."""
        body = {
            "model": SERVED_NAME,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "temperature": 0,
            **fields,
        }
        return self.request("/v1/chat/completions", body, headers)

    def complete(self, prompt: Any, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A greedy text completion."""
        body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return self.request("/v1/completions", body, headers)


def _answer(status: int, data: bytes, headers: Any) -> Answer:
    try:
        body: Any = json.loads(data)
    except ValueError:
        body = data.decode("utf-8", "replace")
    return Answer(status, body, {name.lower(): value for name, value in headers.items()})


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def server_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The test's environment without our own variables, with vLLM kept small and offline."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("TOKENDANCE_")}
    packages = [str(REPOSITORY / name) for name in ("sdk", "engine", "benchmarks")]
    path = os.pathsep.join([*packages, *filter(None, [base.get("PYTHONPATH")])])
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": path,
    }
    return {**base, **defaults, **(extra or {})}


def server_command(model: Path, port: int, arguments: Sequence[str] = ()) -> list[str]:
    """The command line of a small float32 server."""
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(model),
        *("--served-model-name", SERVED_NAME),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        *("--dtype", "float32"),
        "--enforce-eager",
        "--block-size",
        "32",
        *("--max-model-len", "4096"),
        *("--gpu-memory-utilization", "0.2"),
        *arguments,
    ]


@contextmanager
def running_server(
    model: Path,
    log: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    api_key: str | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it is healthy, and end its whole process group afterwards.

    Raises:
        RuntimeError: it ended or was not ready in time; the message has the end of its log.
    """
    port = free_port()
    keys = ["--api-key", api_key] if api_key else []
    with log.open("wb") as out:
        process = subprocess.Popen(
            server_command(model, port, [*arguments, *keys]),
            stdout=out,
            stderr=subprocess.STDOUT,
            env=server_environment(environment),
            start_new_session=True,
        )
    try:
        _wait(process, port, log)
        yield Server(f"http://127.0.0.1:{port}", log, process.pid, api_key)
    finally:
        _end_group(process)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    tail = log.read_text(errors="replace")[-4000:]
    raise RuntimeError(f"the server did not start (exit code {process.poll()}):\n{tail}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for sign, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    try:  # the group outlives its leader for as long as a child of it lives
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_python(
    code: str, environment: dict[str, str] | None = None, arguments: Sequence[str] = (), starts: str = ""
) -> str:
    """Run code in a new interpreter; its last line of output (that starts so)."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=server_environment(environment),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.strip().splitlines() if line.startswith(starts)][-1]
