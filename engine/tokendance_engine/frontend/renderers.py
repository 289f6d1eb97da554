"""vLLM's renderers, taught to split tagged prompts at separators. Untagged prompts take vLLM's own path.

`hooks.hook_renderers` points vLLM's registry at this module; the class for a renderer mode is made when it is
first asked for, as `renderers.<mode>`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tokendance_sdk.content import strip_messages
from tokendance_sdk.protocol import SEPARATOR
from vllm.exceptions import GracefulHTTPError
from vllm.logger import init_logger
from vllm.utils.import_utils import resolve_obj_by_qualname

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.context import tagged_state
from tokendance_engine.frontend.separator import Segmenter

logger = init_logger("vllm.tokendance")

BOUNDARIES = "tokendance_boundaries"
"""Key of an engine input: token offsets of the separators of a tagged prompt."""
_SPLIT = "tokendance_split"
ORIGINALS: dict[str, tuple[str, str]] = {}
"""Renderer mode -> (module, class name) that vLLM had registered."""


def config_of(vllm_config: Any) -> EngineConfig:
    """The TokenDance settings that vLLM's config carries."""
    transfer = vllm_config.kv_transfer_config
    return EngineConfig.from_extra_config(transfer.kv_connector_extra_config if transfer else None)


def segmenter_of(renderer: Any) -> Segmenter:
    """The renderer's segmenter, made on first use."""
    made: Segmenter | None = renderer.__dict__.get("_tokendance_segmenter")
    if made is None:
        made = renderer._tokendance_segmenter = _make_segmenter(renderer)
    return made


def _make_segmenter(renderer: Any) -> Segmenter:
    tokenizer = renderer.get_tokenizer()

    def encode(text: str, specials: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=specials, truncation=False)["input_ids"])

    def decode(ids: list[int]) -> str:
        try:
            return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        except TypeError:
            return str(tokenizer.decode(ids))

    made = Segmenter(encode, decode, max_segments=config_of(renderer.config).max_segments)
    if not made.splittable:
        logger.warning(
            "TokenDance: this tokenizer cannot be split between blocks; shared blocks are not reused"
        )
    return made


class SplittingRenderer:
    """Mixin before a `BaseRenderer`: separators out, boundaries recorded, for tagged prompts only."""

    def _tokenize_singleton_prompt(self, prompt: Any, params: Any) -> Any:
        return super()._tokenize_singleton_prompt(_mark(prompt), params)  # type: ignore[misc]

    async def _tokenize_singleton_prompt_async(self, prompt: Any, params: Any) -> Any:
        # Marked here because _tokenize_prompt runs in a thread that does not see the context variable.
        return await super()._tokenize_singleton_prompt_async(_mark(prompt), params)  # type: ignore[misc]

    def _tokenize_prompt(self, prompt: Any, params: Any) -> Any:
        if not prompt.pop(_SPLIT, False):
            return super()._tokenize_prompt(prompt, params)  # type: ignore[misc]
        try:
            done = segmenter_of(self).split(prompt["prompt"], add_special_tokens=params.add_special_tokens)
        except RequestRejectedError as error:
            raise as_vllm_error(error) from None
        out = self._build_tokens_prompt(done.token_ids, {**prompt, "prompt": done.text})  # type: ignore[attr-defined]
        out[BOUNDARIES] = (len(done.token_ids), done.boundaries)
        return out

    def _process_tokens(self, prompt: Any, **kwargs: Any) -> Any:
        return _carry(prompt, super()._process_tokens(prompt, **kwargs))  # type: ignore[misc]

    async def _process_tokens_async(self, prompt: Any, **kwargs: Any) -> Any:
        return _carry(prompt, await super()._process_tokens_async(prompt, **kwargs))  # type: ignore[misc]

    def render_messages(self, messages: Any, params: Any) -> Any:
        rendered = super().render_messages(messages, params)  # type: ignore[misc]
        if _rendered_with_separators(messages, rendered):
            return super().render_messages(strip_messages(messages), params)  # type: ignore[misc]
        return rendered

    async def render_messages_async(self, messages: Any, params: Any) -> Any:
        rendered = await super().render_messages_async(messages, params)  # type: ignore[misc]
        if _rendered_with_separators(messages, rendered):
            return await super().render_messages_async(strip_messages(messages), params)  # type: ignore[misc]
        return rendered


def as_vllm_error(error: RequestRejectedError) -> Exception:
    """Our refusal as the exception from which vLLM makes an HTTP answer with the same status."""
    from http import HTTPStatus

    made: Exception = GracefulHTTPError(str(error), HTTPStatus(error.status))
    return made


def _mark(prompt: Any) -> Any:
    text = isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str)
    ready = text and ("prompt_token_ids" in prompt or "prompt_embeds" in prompt)
    return {**prompt, _SPLIT: True} if text and not ready and tagged_state() is not None else prompt


def _carry(prompt: Any, engine_input: Any) -> Any:
    """Hand the boundaries on, unless truncation or image placeholders moved the tokens since."""
    if BOUNDARIES in prompt:
        tokens, boundaries = prompt[BOUNDARIES]
        kept = len(engine_input["prompt_token_ids"]) == tokens
        engine_input[BOUNDARIES] = boundaries if kept else ()
    return engine_input


def _rendered_with_separators(messages: Any, rendered: Any) -> bool:
    """Whether a template that renders straight to token ids swallowed separators as text."""
    if tagged_state() is None or "prompt_token_ids" not in rendered[1]:
        return False
    return SEPARATOR in str(messages)


@functools.cache
def _renderer_class(mode: str) -> type:
    module, name = ORIGINALS[mode]
    base: type = resolve_obj_by_qualname(f"{module}.{name}")
    return type(f"TokenDance{name}", (SplittingRenderer, base), {})


def __getattr__(name: str) -> type:
    if name not in ORIGINALS:
        raise AttributeError(f"no renderer mode {name!r}; allowed: {', '.join(ORIGINALS)}")
    return _renderer_class(name)
