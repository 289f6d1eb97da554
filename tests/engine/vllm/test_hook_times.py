"""Hooks are timed where that is asked for, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokendance_engine import plugin
from tokendance_engine.adapters.vllm import hook_times
from tokendance_engine.adapters.vllm.hook_times import HookTimes


def test_a_hook_within_a_hook_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_times, "WRITE_SECONDS", -1)
    times = HookTimes(tmp_path / "t")
    inner = times.hook(lambda: 2)
    outer = times.hook(lambda: inner() + 1)
    assert times.step(outer)() == 3
    written = json.loads((tmp_path / "t").read_text())
    assert (written["hook_calls"], written["steps"]) == (1, 1)
    assert 0 < written["hook_seconds"] <= written["step_seconds"]


def test_errors_pass_and_are_counted(tmp_path: Path) -> None:
    times = HookTimes(tmp_path / "t")

    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        times.hook(fails)()
    assert times.counts["hook_calls"] == 1
    times.hook(lambda: None)()
    assert times.counts["hook_calls"] == 2


def test_nothing_is_wrapped_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hook_times.PREFIX_ENV, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(plugin.hook_times, "install", asked.append)
    monkeypatch.setattr(plugin.hooks, "hook_renderers", lambda name: None)
    monkeypatch.setattr(plugin.hooks, "hook_process_inputs", lambda merge: None)
    monkeypatch.setattr(plugin, "_timed", [])
    plugin.install()
    assert asked == []
    monkeypatch.setenv(hook_times.PREFIX_ENV, "/tmp/p")
    plugin.install()
    plugin.install()
    assert asked == ["/tmp/p"]


def test_the_hooks_that_vllm_calls_are_the_ones_that_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokendance_engine.adapters.vllm.connector import TokenDanceConnector
    from vllm.v1.engine.core import EngineCore

    for owner in (TokenDanceConnector, EngineCore):  # what is wrapped here is put back
        for name, value in list(vars(owner).items()):
            if callable(value) and not name.startswith("__"):
                monkeypatch.setattr(owner, name, value)
    hook_times.install(str(tmp_path / "t"))
    timed = {n for n, v in vars(TokenDanceConnector).items() if hasattr(v, "__wrapped__")}
    assert {
        "get_num_new_matched_tokens",
        "build_connector_meta",
        "bind_connector_metadata",
        "get_finished",
        "request_finished",
    } <= timed
    assert hasattr(EngineCore.step, "__wrapped__")
    assert os.environ.get(hook_times.PREFIX_ENV) is None
