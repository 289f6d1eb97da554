"""The demo: its graph on a real server, the whole command, and the command interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI
from tiny_models import make_tiny_model
from tokendance_sdk.demo_graph import play_graph
from tokendance_sdk.replay import Settings, served_model, server_codec
from tokendance_sdk.workload import load_workload
from tokendance_sdk.workload_cut import Cut, cut
from vllm_server import Server, server_environment

pytestmark = pytest.mark.server

MARK = "DEMO_TEST_MARK"


async def test_every_round_of_the_graph_but_the_first_reuses(server: Server) -> None:
    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="none") as probe:
        model, _ = served_model(probe)
        size = Cut(rounds=3, history_tokens=150, block_tokens=120)
        story = cut(load_workload("ga-ville3-valentine"), size, *server_codec(probe, model))
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        found = await play_graph(client, story, Settings(answer_tokens=4), model=model)
    assert not found.plain
    assert not found.failed
    assert [row.fallbacks for row in found.rows] == [{"no_shared_segments": 3}, {}, {}]
    for row in found.rows:
        parts = (row.cached_tokens, row.reused_tokens, row.recomputed_tokens, row.fresh_tokens)
        assert sum(parts) == row.prompt_tokens
        assert (row.reused_tokens > 0) == (row.index > 0)
        assert len(row.outputs) == 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    """A model that starts fast and has positions enough for the demo's settings."""
    where = tmp_path_factory.mktemp("tiny") / "llama"
    return make_tiny_model("llama", where, tokenizer=model_dir, max_position_embeddings=8192)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for the demo's logs and sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="td-") as folder:
        yield Path(folder)


@contextmanager
def demo(model: Path, scratch: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tokendance demo` and the mark that everything it starts inherits; its logs are below `scratch`."""
    mark = uuid.uuid4().hex
    environment = server_environment({MARK: mark, "TMPDIR": str(scratch), "COLUMNS": "120"})
    command = [sys.executable, "-m", "tokendance_sdk.cli", "demo", "--model", str(model), *options]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background inherits an ignored SIGINT; the demo is run by a person in the foreground.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process, mark
    finally:
        process.kill()
        process.communicate()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Processes that inherited `mark`, however they detached themselves."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone meanwhile
            continue
    return found


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)


def test_the_command_compares_with_plain_vllm_and_leaves_nothing_behind(tiny: Path, scratch: Path) -> None:
    with demo(tiny, scratch, "--rounds", "3", "--json") as (process, mark):
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
        assert marked(mark) == []
    found = json.loads(out)
    ours, other = found["replay"], found["compare"]
    assert (ours["plain"], other["plain"]) == (False, True)
    assert ours["through"] == other["through"] == "LangGraph"
    assert [row["prompt_tokens"] for row in ours["rows"]] == [row["prompt_tokens"] for row in other["rows"]]
    assert [row["reused_tokens"] > 0 for row in ours["rows"]] == [False, True, True]
    assert [row["reused_tokens"] for row in other["rows"]] == [0, 0, 0]
    assert list(scratch.glob("tokendance-demo-*")) == []


@pytest.mark.parametrize("moment", ["start", "play"])
def test_an_interrupted_demo_takes_its_server_along(tiny: Path, scratch: Path, moment: str) -> None:
    def reached() -> bool:
        if moment == "start":
            return len(marked(mark)) > 1
        logs = scratch.glob("tokendance-demo-*/TokenDance.log")
        return any("POST /v1/rounds" in log.read_text(errors="replace") for log in logs)

    with demo(tiny, scratch) as (process, mark):
        wait_for(reached, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert marked(mark) == []
    assert list(scratch.glob("tokendance-demo-*")) == []
