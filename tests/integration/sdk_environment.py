"""Scripts run where AutoGen and AG2 are installed: they cannot share the engine's environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from vllm_server import REPOSITORY, SERVED_NAME, Server

PYTHON = REPOSITORY / ".venv-sdk" / "bin" / "python"


def needs(package: str) -> None:
    """Skip where the SDK's environment lacks the package."""
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: make setup")
    if subprocess.run([str(PYTHON), "-c", f"import {package}"], capture_output=True, check=False).returncode:
        pytest.skip(f".venv-sdk has no {package}: make setup")


def run(script: Path, *arguments: str, python: Path = PYTHON) -> str:
    """What a script printed."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "sdk")}
    done = subprocess.run(
        [str(python), str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def play(script: str, server: Server, *arguments: str) -> dict[str, Any]:
    """The JSON that one of `in_sdk/`'s scripts printed last."""
    path = Path(__file__).parent / "in_sdk" / script
    out = run(path, "--base-url", f"{server.url}/v1", "--model", SERVED_NAME, *arguments)
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer
