"""`vllm serve MODEL --plugin tokendance_engine`: the general plugin that vLLM loads in each of its processes.

Without the flag nothing happens: no connector, no route, no header, no log line. With it, the parsed
arguments get the connector, the middleware and the worker extension, and `TOKENDANCE_ENGINE_ACTIVE=1` tells
the processes that vLLM starts to install the same hooks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from tokendance_engine.adapters.vllm import hook_times, hooks
from tokendance_engine.config import FLAG_PREFIX, EngineConfig, allowed, flag_name, parse, settings
from tokendance_engine.errors import ConfigError, EngineError

PLUGIN_NAME = "tokendance_engine"
ACTIVE_ENV = "TOKENDANCE_ENGINE_ACTIVE"
CONNECTOR = ("tokendance_engine.adapters.vllm.connector", "TokenDanceConnector")
MIDDLEWARE = "tokendance_engine.frontend.middleware.TokenDanceMiddleware"
WORKER_EXTENSION = "tokendance_engine.adapters.vllm.extension.WorkerExtension"
_DEST = "tokendance_"
_timed: list[hook_times.HookTimes] = []  # at most one: this process's counts, where they were asked for


def register() -> None:
    """Entry point of the group `vllm.general_plugins`: idempotent, and cheap while inactive."""
    hooks.hook_argument_parser(extend_parser)
    if os.environ.get(ACTIVE_ENV) == "1":
        install()


def activate() -> None:
    """Install the hooks in this process and in every process it starts.

    Raises:
        UnsupportedVersionError: the running vLLM is not one the hooks were read against.
    """
    hooks.check_version()
    os.environ[ACTIVE_ENV] = "1"
    install()


def install() -> None:
    """Install the front end's hooks in this process. Idempotent."""
    hooks.check_version()
    from tokendance_engine.frontend.merge import merge_tag

    hooks.hook_renderers("tokendance_engine.frontend.renderers")
    hooks.hook_process_inputs(merge_tag)
    if (prefix := os.environ.get(hook_times.PREFIX_ENV)) and not _timed:
        _timed.append(hook_times.install(prefix))


def kv_transfer_config(config: EngineConfig) -> Any:
    """vLLM's `KVTransferConfig` that puts our connector in place with `config`."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=CONNECTOR[1],
        kv_role="kv_both",
        kv_connector_module_path=CONNECTOR[0],
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=config.to_extra_config(),
    )


def extend_parser(parser: Any) -> None:
    """Give an argument parser the flag `--plugin` and one `--tokendance-*` flag per setting. Idempotent."""
    if "--plugin" in parser._option_string_actions:
        return
    group = parser.add_argument_group("TokenDance", "Shared KV for multi-agent rounds (tokendance).")
    group.add_argument(
        "--plugin",
        action="append",
        default=None,
        metavar=PLUGIN_NAME,
        help=f"Switch on an engine plugin; allowed: {PLUGIN_NAME}.",
    )
    for each in settings():
        group.add_argument(
            flag_name(each.name),
            dest=_DEST + each.name,
            default=argparse.SUPPRESS,
            type=_argument(each.name),
            metavar=each.name.rpartition("_")[2].upper(),
            **({} if each.metadata["alone"] is None else {"nargs": "?", "const": each.metadata["alone"]}),
            help=f"{each.metadata['help']} Allowed: {allowed(each)}. Default: {each.default}.",
        )
    inner = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None, *rest: Any, **kwargs: Any) -> Any:
        parsed, unknown = inner(args, namespace, *rest, **kwargs)
        apply_arguments(parser, parsed)
        return parsed, unknown

    parser.parse_known_args = parse_known_args


def apply_arguments(parser: Any, parsed: argparse.Namespace) -> None:
    """Turn a parsed `--plugin tokendance_engine` into vLLM's own arguments.

    It runs after parsing, so that the order of the flags does not matter. Exits through `parser.error`, with
    the remedy, where TokenDance cannot work.
    """
    given = {
        name.removeprefix(_DEST): value for name, value in vars(parsed).items() if name.startswith(_DEST)
    }
    plugins = getattr(parsed, "plugin", None) or []
    unknown = [name for name in plugins if name != PLUGIN_NAME]
    if unknown:
        parser.error(f"argument --plugin: got {unknown[0]!r}; allowed: {PLUGIN_NAME}")
    if not plugins:
        if given:
            parser.error(
                f"argument {flag_name(next(iter(given)))}: {FLAG_PREFIX}* flags need --plugin {PLUGIN_NAME}"
            )
        return
    _refuse_impossible(parser, parsed)
    try:
        config = EngineConfig.resolve(flags=given)
        activate()
    except EngineError as error:
        parser.error(str(error))
    parsed.kv_transfer_config = kv_transfer_config(config)
    if hasattr(parsed, "middleware"):
        parsed.middleware = [*(parsed.middleware or []), MIDDLEWARE]
    if hasattr(parsed, "enable_prompt_tokens_details"):
        parsed.enable_prompt_tokens_details = True
    if not getattr(parsed, "worker_extension_cls", ""):
        parsed.worker_extension_cls = WORKER_EXTENSION


def _refuse_impossible(parser: Any, parsed: argparse.Namespace) -> None:
    if getattr(parsed, "kv_transfer_config", None) is not None:
        parser.error(
            "argument --kv-transfer-config: not allowed with --plugin tokendance_engine, which brings its "
            "own connector; remove one of the two"
        )
    if getattr(parsed, "grpc", False):
        parser.error(
            "argument --grpc: not allowed with --plugin tokendance_engine, whose front end is HTTP; "
            "remove --grpc"
        )
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0").lower() in ("1", "true"):
        parser.error(
            "VLLM_USE_RUST_FRONTEND=1: not allowed with --plugin tokendance_engine, which needs vLLM's "
            "Python front end; unset it"
        )


def _argument(name: str) -> Callable[[str], Any]:
    def convert(value: str) -> Any:
        try:
            return parse(name, value, "value")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
