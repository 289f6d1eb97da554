"""Attach the resolved tag to an engine request, on its way through vLLM's input processor."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from tokendance_sdk.blocks import strip_separators
from tokendance_sdk.protocol import BODY_KEY, RoundTag
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import ConfigError, RequestRejectedError
from tokendance_engine.frontend.context import tagged_state
from tokendance_engine.frontend.renderers import BOUNDARIES, config_of, segmenter_of
from tokendance_engine.frontend.tagging import check_segments, read_tag
from tokendance_engine.reuse.backends import make_backend
from tokendance_engine.rounds.tag import EngineTag

_PARAMS = "kv_transfer_params"
_configs: WeakKeyDictionary[Any, EngineConfig] = WeakKeyDictionary()


def merge_tag(processor: Any, request_id: str, prompt: Any, params: Any) -> tuple[Any, Any]:
    """Return the prompt without our marks, and params with the `EngineTag` of a tagged request.

    Neither argument is changed. Runs once per engine prompt, before children of `n > 1` are made. The
    tag comes from the HTTP request being served or, offline, from the params (`tokendance_engine.tag`).

    Raises:
        VLLMValidationError: a tag in the params, or segment offsets, that are not valid (HTTP 400).
    """
    boundaries: tuple[int, ...] | None = None
    if isinstance(prompt, Mapping) and BOUNDARIES in prompt:
        boundaries = prompt[BOUNDARIES]
        prompt = {key: value for key, value in prompt.items() if key != BOUNDARIES}
    if not isinstance(params, SamplingParams):
        return prompt, params
    extra = dict(params.extra_args or {})
    transfer = dict(extra.get(_PARAMS) or {})
    own = transfer.pop(BODY_KEY, None)
    state = tagged_state()
    if state is None and own is None:
        return prompt, params
    config = _config(processor)
    try:
        if state is not None and state.tag is not None:
            tag, size, together = state.tag, state.size, state.size is not None
        else:
            tag, size, together = _direct_tag(own), None, False
            prompt, boundaries = _split(processor, prompt)
        if tag.segments is not None:
            if boundaries:
                raise RequestRejectedError(
                    f"{BODY_KEY}.segments: got {tag.segments!r}; allowed: only with a prompt of token ids"
                )
            ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
            check_segments(tag.segments, len(ids or ()), config.max_segments)
            boundaries = tuple(tag.segments)
        _check_backend(processor, tag.backend or config.default_backend, tag.options)
    except (RequestRejectedError, ConfigError) as error:
        raise VLLMValidationError(str(error)) from None
    resolved = EngineTag(
        round_id=tag.round_id,
        agent_id=tag.agent_id or request_id,
        session_id=tag.session,
        parent=f"{request_id}-{uuid.uuid4().hex[:8]}",
        round_size=size if together else tag.round_size,
        together=together,
        fidelity=tag.fidelity if "fidelity" in tag.model_fields_set else config.default_fidelity,
        placement=tag.placement,
        backend=tag.backend or config.default_backend,
        options=dict(tag.options),
        execution=tag.execution or config.execution,
        named=tag.agent_id is not None,
        automatic=state is not None and state.automatic,
        segments=boundaries or (),
    )
    params = params.clone()
    params.extra_args = {**extra, _PARAMS: {**transfer, **resolved.to_params()}}
    return prompt, params


def _config(processor: Any) -> EngineConfig:
    if processor not in _configs:
        _configs[processor] = config_of(processor.vllm_config)
    return _configs[processor]


def _check_backend(processor: Any, name: str, options: Mapping[str, Any]) -> None:
    """Refuse what the engine could only serve plainly.

    Raises:
        ConfigError: the backend or one of its options does not exist, or it checks a layer the model does not have.
    """
    check = make_backend(name, 0, options).check
    model = getattr(processor.vllm_config, "model_config", None)
    layers = getattr(getattr(model, "hf_text_config", None), "num_hidden_layers", None)
    if check is not None and layers is not None and not 0 <= check.layer < layers:
        raise ConfigError(f"check layer {check.layer} of backend {name!r}; allowed: 0 to {layers - 1}")


def _direct_tag(value: Any) -> RoundTag:
    """A tag given in the params: the fields of `RoundTag`, checked as if they came in a body."""
    tag = read_tag((), value)
    if tag is None:
        raise RequestRejectedError(f"{BODY_KEY}: got {value!r}; allowed: an object with a round_id")
    return tag


def _split(processor: Any, prompt: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Split a text prompt that was tokenized before anybody knew it to be tagged."""
    renderer = processor.renderer
    if not isinstance(prompt, Mapping) or prompt.get("type") != "token" or not prompt.get("prompt"):
        return prompt, None
    if prompt["prompt"] == strip_separators(prompt["prompt"]):
        return prompt, None
    segmenter = segmenter_of(renderer)
    plain, ids = prompt["prompt"], prompt["prompt_token_ids"]
    for specials in (True, False):
        if segmenter.whole(plain, specials) == list(ids):
            done = segmenter.split(plain, add_special_tokens=specials)
            return {**prompt, "prompt": done.text, "prompt_token_ids": done.token_ids}, done.boundaries
    return prompt, None
