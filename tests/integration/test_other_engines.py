"""Engines with other settings, each in a process of its own: vLLM starts one engine per process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.server
HERE = Path(__file__).parent / "inproc"

ENGINES = [
    ("engine_bf16.py", ""),
    ("engine_backends.py", ""),
    ("engine_small_pool.py", ""),
    ("engine_triton.py", ""),
    ("engine_soak.py", ""),
    ("engine_soak_stored.py", ""),
    ("engine_mirrors.py", ""),
    ("engine_model.py", "qwen2:64"),
    ("engine_model.py", "qwen3:128"),
    ("engine_model.py", "mistral:32"),
    ("engine_model.py", "yarn:32"),
    ("engine_model.py", "llama3:32"),
    ("engine_model.py", "partial:32"),
    ("engine_refused.py", "gemma3"),
    ("engine_refused.py", "speculative"),
    ("engine_narrow.py", ""),
]


@pytest.mark.parametrize(("module", "tiny"), ENGINES, ids=lambda value: value or "-")
def test_engine(module: str, tiny: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / module)]
    env = {**os.environ, **({"TOKENDANCE_TINY": tiny} if tiny else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_an_engine_started_again_finds_its_histories_on_disk_and_does_without_damaged_ones(
    tmp_path: Path,
) -> None:
    module = str(HERE / "engine_mirror_tier.py")
    for damaged in ("", "", "1"):
        env = {**os.environ, "TOKENDANCE_TIER": str(tmp_path), "TOKENDANCE_TIER_DAMAGED": damaged}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", module]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_two_ranks_answer_as_one(tmp_path: Path) -> None:
    module = str(HERE / "engine_tensor_parallel.py")
    for ranks in ("1", "2"):
        env = {**os.environ, "TOKENDANCE_RANKS": ranks, "TOKENDANCE_ANSWERS": str(tmp_path / "answers.json")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", module]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
