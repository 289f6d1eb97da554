"""Every place where vLLM itself is changed: two wrapped functions and one registry. Nothing else is patched.

Read against vLLM 0.32. `check_version` refuses other versions, and the activation tests compare the
signatures below, so that a changed target fails loudly instead of being called wrongly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tokendance_engine.errors import UnsupportedVersionError

READ_AGAINST = ("0.32",)
_MARK = "__tokendance__"

Parser = Any
TagMerger = Callable[[Any, str, Any, Any], tuple[Any, Any]]
"""(input processor, request id, prompt, params) -> (prompt, params); may raise vLLM's validation error."""


def check_version(version: str | None = None) -> str:
    """The running vLLM's version (or `version`), if it is one the hooks were read against.

    Raises:
        UnsupportedVersionError: another version.
    """
    if version is None:
        import vllm

        version = str(vllm.__version__)
    if ".".join(version.split(".")[:2]) not in READ_AGAINST:
        raise UnsupportedVersionError(
            f"vLLM {version} is not supported by this tokendance; allowed: {', '.join(READ_AGAINST)}.x "
            "(install a matching vLLM, or start the server without --plugin tokendance_engine)"
        )
    return version


def hook_argument_parser(extend: Callable[[Parser], None]) -> None:
    """Wrap `EngineArgs.add_cli_args`, so that `extend(parser)` sees every parser that takes engine arguments.

    Reason: vLLM has no public way for a plugin to add a flag; this static method is called for `serve`, the
    API server module and the benchmarks, after general plugins were loaded. Idempotent; does nothing in a
    process that never imported the module (it parses no command line).
    """
    module = sys.modules.get("vllm.engine.arg_utils")
    engine_args = getattr(module, "EngineArgs", None)  # absent while the module is still being imported
    if engine_args is None or hasattr(engine_args.add_cli_args, _MARK):
        return
    original = engine_args.add_cli_args

    @functools.wraps(original)
    def add_cli_args(parser: Parser) -> Parser:
        parser = original(parser)
        extend(parser)
        return parser

    setattr(add_cli_args, _MARK, True)
    engine_args.add_cli_args = staticmethod(add_cli_args)


def hook_process_inputs(merge: TagMerger) -> None:
    """Wrap `InputProcessor.process_inputs`, so that `merge` can attach a tag to the request.

    Reason: it is the one function through which every prompt (HTTP, offline, several prompts in one request)
    passes after tokenization and before `EngineCoreRequest` exists. Idempotent.
    """
    from vllm.v1.engine.input_processor import InputProcessor

    original = InputProcessor.process_inputs
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def process_inputs(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        prompt, params = merge(self, request_id, prompt, params)
        return original(self, request_id, prompt, params, *args, **kwargs)

    setattr(process_inputs, _MARK, True)
    InputProcessor.process_inputs = process_inputs


def hook_renderers(module: str) -> None:
    """Let `module` provide each renderer: `module.<mode>` is a subclass of vLLM's class for that mode.

    Uses vLLM's public registry; classes are still built lazily. Idempotent.
    `module.ORIGINALS` (dict) receives mode -> (module, class name) of what was registered before.
    """
    import importlib

    from vllm.renderers.registry import RENDERER_REGISTRY

    originals: dict[str, tuple[str, str]] = importlib.import_module(module).ORIGINALS
    for mode, home in list(RENDERER_REGISTRY.renderers.items()):
        if home[0] != module:
            originals[mode] = home
            RENDERER_REGISTRY.renderers[mode] = (module, mode)
