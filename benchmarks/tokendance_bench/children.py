"""Engines in processes of their own: vLLM starts one engine per process, and one benchmark compares several."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokendance_bench.run import read_rows

ROWS = "rows.jsonl"
_POLL_SECONDS = 0.2


class ChildError(RuntimeError):
    """A child process of a benchmark failed; the message has the end of its log."""


def rows_of(module: str, arguments: Sequence[str], log: Path) -> Iterator[dict[str, Any]]:
    """Run `python -m module ARGUMENTS --out FOLDER --child`; its rows as it writes them to `FOLDER/rows.jsonl`.

    Args:
        log: where its output goes.

    Raises:
        ChildError: it ended with another status than 0; rows it had written before were yielded.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as sink:
        command = [sys.executable, "-m", module, *arguments, "--out", folder, "--child"]
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            seen = 0
            while True:
                ended = process.poll() is not None  # asked first: what it wrote last is read below
                for row in read_rows(Path(folder) / ROWS, seen):
                    seen += 1
                    yield row
                if ended:
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    if process.returncode:
        raise ChildError(f"{module} ended with status {process.returncode}; see {log}\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
