"""Servers shared by the integration tests: one with the plugin, one without, started once per session.

`TOKENDANCE_TEST_MODEL` names a model directory; without it the demo model is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_server import Server, running_server

PLUGIN = ("--plugin", "tokendance_engine")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    given = os.environ.get("TOKENDANCE_TEST_MODEL")
    if given:
        return Path(given)
    from tokendance_sdk.demo_model import ensure_smollm2

    return Path(ensure_smollm2())


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def server(model_dir: Path, log_dir: Path) -> Iterator[Server]:
    """vLLM with the plugin: demo model, float32, eager."""
    with running_server(model_dir, log_dir / "plugin.log", PLUGIN) as running:
        yield running


@pytest.fixture(scope="session")
def plain_server(model_dir: Path, log_dir: Path) -> Iterator[Server]:
    """The same vLLM without the plugin, which is installed all the same."""
    with running_server(model_dir, log_dir / "plain.log") as running:
        yield running


@pytest.fixture(scope="session")
def options_server(log_dir: Path) -> Iterator[Server]:
    """A tiny model with what is off by default: stored histories, and groups of untagged requests."""
    from tiny_models import make_tiny_model

    model = make_tiny_model("llama", log_dir / "options")
    options = (
        "--tokendance-cpu-bytes",
        "100000000",
        "--tokendance-auto-group",
        "--tokendance-gather-ms",
        "500",
    )
    with running_server(model, log_dir / "options.log", (*PLUGIN, *options)) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_server(log_dir: Path) -> Iterator[Server]:
    """The plugin on a tiny model, so that many agents fit into a test."""
    from tiny_models import make_tiny_model

    model = make_tiny_model("llama", log_dir / "tiny")
    with running_server(model, log_dir / "tiny.log", PLUGIN) as running:
        yield running
