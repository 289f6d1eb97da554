"""The flag in the argument parser, what is refused with it, and a process in which it was not given."""

from __future__ import annotations

import argparse
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tokendance_engine import plugin
from tokendance_engine.adapters.vllm import hooks
from tokendance_engine.errors import UnsupportedVersionError
from vllm_server import run_python

PLUGIN = ["--plugin", "tokendance_engine"]


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The parser of `vllm serve`, as vLLM makes it once the plugin was registered."""
    from vllm.engine import arg_utils
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.delenv(plugin.ACTIVE_ENV, raising=False)
    monkeypatch.setattr(arg_utils, "load_general_plugins", plugin.register)
    monkeypatch.setattr(plugin, "install", lambda: None)
    made = make_arg_parser(FlexibleArgumentParser())
    yield made
    os.environ.pop(plugin.ACTIVE_ENV, None)


def refusal(parser: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_without_the_flag_the_arguments_are_vllms_own(parser: Any) -> None:
    parsed = parser.parse_args(["--port", "1"])
    assert parsed.kv_transfer_config is None
    assert parsed.middleware == []
    assert not parsed.enable_prompt_tokens_details
    assert parsed.worker_extension_cls == ""
    assert plugin.ACTIVE_ENV not in os.environ


@pytest.mark.parametrize(
    ("given", "value"),
    [([], "off"), (["--tokendance-auto-group"], "exact"), (["--tokendance-auto-group", "fast"], "fast")],
)
def test_auto_groups_are_off_and_exact_unless_a_fidelity_is_named(
    parser: Any, given: list[str], value: str
) -> None:
    parsed = parser.parse_args([*PLUGIN, *given, "--port", "1"])
    assert parsed.kv_transfer_config.kv_connector_extra_config["tokendance"]["auto_group"] == value


def test_the_flag_sets_connector_middleware_extension_and_usage_details(parser: Any) -> None:
    parsed = parser.parse_args([*PLUGIN, "--tokendance-gather-ms", "50", "--middleware", "my.own"])
    transfer = parsed.kv_transfer_config
    assert (transfer.kv_connector, transfer.kv_connector_module_path) == plugin.CONNECTOR[::-1]
    assert (transfer.kv_role, transfer.kv_load_failure_policy) == ("kv_both", "recompute")
    assert transfer.kv_connector_extra_config["tokendance"]["gather_ms"] == 50.0
    assert parsed.middleware == ["my.own", plugin.MIDDLEWARE]
    assert parsed.enable_prompt_tokens_details
    assert parsed.worker_extension_cls == plugin.WORKER_EXTENSION
    assert os.environ[plugin.ACTIVE_ENV] == "1"


def test_a_users_worker_extension_is_kept(parser: Any) -> None:
    assert parser.parse_args([*PLUGIN, "--worker-extension-cls", "a.B"]).worker_extension_cls == "a.B"


def test_the_flag_and_settings_work_in_a_config_file(parser: Any, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("plugin: [tokendance_engine]\ntokendance-fast-tokens: 8\ntokendance_kernel: torch\n")
    parsed = parser.parse_args(["--config", str(file)])
    settings = parsed.kv_transfer_config.kv_connector_extra_config["tokendance"]
    assert (settings["fast_tokens"], settings["kernel"]) == (8, "torch")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--plugin", "other"], ["--plugin", "'other'", "allowed: tokendance_engine"]),
        (["--tokendance-gather-ms", "5"], ["--tokendance-gather-ms", "need --plugin tokendance_engine"]),
        ([*PLUGIN, "--tokendance-gather-ms", "soon"], ["'soon'", "allowed: a number from 0 to 60000"]),
        ([*PLUGIN, "--tokendance-kernel", "x"], ["'x'", "allowed: one of auto, torch"]),
        (
            [
                *PLUGIN,
                "--kv-transfer-config",
                '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}',
            ],
            ["--kv-transfer-config", "remove one of the two"],
        ),
        ([*PLUGIN, "--grpc"], ["--grpc", "remove --grpc"]),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(
    parser: Any, arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(parser, arguments, capsys)
    for part in parts:
        assert part in message
    assert plugin.ACTIVE_ENV not in os.environ


def test_the_rust_front_end_is_refused(
    parser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert "VLLM_USE_RUST_FRONTEND=1: not allowed" in refusal(parser, PLUGIN, capsys)


def test_a_bad_environment_variable_stops_the_start(
    parser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENDANCE_MAX_AGENTS", "0")
    assert "TOKENDANCE_MAX_AGENTS: got '0'; allowed: a whole number from 1" in refusal(parser, PLUGIN, capsys)


def test_help_has_a_group_of_its_own(parser: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        with pytest.raises(SystemExit):
            parser.parse_args(["--help=TokenDance"])
    finally:
        FlexibleArgumentParser._search_keyword = None
    shown = capsys.readouterr().out
    for name in ("--plugin", "--tokendance-gather-ms", "--tokendance-max-segments"):
        assert name in shown


def test_registering_twice_wraps_once(parser: Any) -> None:
    from vllm.engine.arg_utils import EngineArgs

    once = EngineArgs.add_cli_args
    plugin.register()
    assert EngineArgs.add_cli_args is once
    plugin.extend_parser(parser)
    assert parser.parse_args(PLUGIN).middleware == [plugin.MIDDLEWARE]


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0"])
def test_another_vllm_is_refused_by_name(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=rf"vLLM {version} is not supported .* allowed: 0.32.x"):
        hooks.check_version(version)


def test_this_vllm_is_one_the_hooks_were_read_against() -> None:
    assert hooks.check_version() == hooks.check_version(None)
    assert hooks.check_version("0.32.0+cpu") == "0.32.0+cpu"


def test_the_functions_we_wrap_or_call_have_the_signatures_we_read() -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.renderers.base import BaseRenderer
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    expected = {
        EngineArgs.add_cli_args: ["parser"],
        InputProcessor.process_inputs: ["self", "request_id", "prompt", "params", "supported_tasks"],
        BaseRenderer._tokenize_singleton_prompt: ["self", "prompt", "params"],
        BaseRenderer._tokenize_singleton_prompt_async: ["self", "prompt", "params"],
        BaseRenderer._tokenize_prompt: ["self", "prompt", "params"],
        BaseRenderer._process_tokens: ["self", "prompt", "skip_mm_cache"],
        BaseRenderer._process_tokens_async: ["self", "prompt", "skip_mm_cache"],
        BaseRenderer.render_messages: ["self", "messages", "params"],
        BaseRenderer.render_messages_async: ["self", "messages", "params"],
        BaseRenderer._build_tokens_prompt: ["token_ids", "prompt", "offset_mapping"],
        OpenAIServingChat.create_chat_completion: ["self", "request", "raw_request"],
        AsyncLLM.generate: ["self", "prompt", "sampling_params", "request_id"],
    }
    for function, names in expected.items():
        assert list(inspect.signature(function).parameters)[: len(names)] == names, function.__qualname__


def test_an_inactive_plugin_imports_neither_vllm_nor_torch_nor_openai() -> None:
    code = (
        "import sys, tokendance_engine.plugin as p; p.register();"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'vllm', 'torch', 'openai', 'fastapi'}))"
    )
    assert run_python(code) == "[]"


@pytest.mark.server  # another process that imports vLLM: seconds, where unit tests take none
def test_a_process_is_left_alone_until_the_environment_variable_activates_it() -> None:
    code = (
        "import os, vllm.engine.arg_utils, tokendance_engine.plugin as p\n"
        "from vllm.v1.engine.input_processor import InputProcessor as I\n"
        "from vllm.renderers.registry import RENDERER_REGISTRY as R\n"
        "p.register()\n"
        "ours = lambda: any('tokendance' in m for m, _ in R.renderers.values())\n"
        "before = hasattr(I.process_inputs, '__tokendance__'), ours()\n"
        "os.environ[p.ACTIVE_ENV] = '1'\n"
        "p.register(); p.register()\n"
        "twice = hasattr(I.process_inputs.__wrapped__, '__wrapped__')\n"
        "print(*before, hasattr(I.process_inputs, '__tokendance__'), twice, R.load_renderer_cls('hf').__name__)"
    )
    assert run_python(code) == "False False True False TokenDanceHfRenderer"


def test_plugin_flag_is_a_namespace_default_of_none(parser: Any) -> None:
    assert isinstance(parser, argparse.ArgumentParser)
    assert parser.parse_args([]).plugin is None
