"""The programs in README and pages run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_server import FakeServer
from tokendance_sdk.protocol import ROUNDS_PATH

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [("autogen.md", "autogen_agentchat", 3), ("ag2.md", "ag2", 4), ("http.md", "openai", 3)]


@pytest.mark.parametrize(("page", "needs", "rounds"), PAGES)
def test_the_program_of_a_page_runs(rounds_server: FakeServer, page: str, needs: str, rounds: int) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not in this environment: make test-sdk")
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)
    assert "http://localhost:8000/v1" in program
    program = program.replace("http://localhost:8000/v1", rounds_server.base_url)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert rounds_server.paths() == [ROUNDS_PATH] * rounds
    assert all(len(body["agents"]) == 2 for body in rounds_server.bodies(ROUNDS_PATH))


def test_the_ten_lines_of_the_readme_run(rounds_server: FakeServer) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert "http://localhost:8000/v1" in program
    program = program.replace("http://localhost:8000/v1", rounds_server.base_url)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    assert done.stdout.count("round chat:") == 3


def test_counting_in_the_quickstart_runs(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "quickstart.md").read_text("utf-8"), re.S)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "smollm2").mkdir()
    words.save(str(tmp_path / "smollm2" / "tokenizer.json"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ \d+ \d+% of prefill and KV at most\n", done.stdout)
