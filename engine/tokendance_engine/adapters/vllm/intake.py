"""From a vLLM request to a member: is it tagged, can it take part, and with which backend?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tokendance_sdk.protocol import FallbackReason
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config

from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.support import UnsupportedError, check_config
from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import ConfigError
from tokendance_engine.reuse.backends import Backend, make_backend
from tokendance_engine.reuse.preamble import NEUTRAL
from tokendance_engine.rounds.content import ContentSessions
from tokendance_engine.rounds.tag import EngineTag
from tokendance_engine.segments.key import Segment, Tokens, split

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tokendance")


class Intake:
    """Turns requests into members.

    Attributes:
        unsupported: why nothing is reused in this engine, or None; the worker's half of the gate may set it later.
        neutral: token ids of the neutral preamble.
        filler: token id of a newline.
        page_size: tokens per page.
    """

    def __init__(self, config: VllmConfig, settings: EngineConfig, kv_cache_config: KVCacheConfig) -> None:
        self._settings = settings
        self._max_tokens = int(config.model_config.max_model_len)
        self.page_size = int(config.cache_config.block_size)
        self._sessions = ContentSessions(settings.min_reused_tokens)
        self.filler = 0
        self.unsupported = _gate(config, kv_cache_config)
        self.neutral: Tokens = np.zeros(0, dtype=np.int32)
        tokenizer = cached_tokenizer_from_config(config.model_config)
        if tokenizer is None:
            self.unsupported = self.unsupported or "the engine runs without a tokenizer: not supported"
        else:
            ids = tokenizer.encode(NEUTRAL, add_special_tokens=False)
            self.neutral = np.array(ids, dtype=np.int32)
            self.filler = int(tokenizer.encode("\n", add_special_tokens=False)[-1])

    def member(self, request: Request, now: float) -> Member | None:
        """The member a request is, with a `reason` if it takes vLLM's own path; None for an untagged request."""
        tag = EngineTag.from_params(request.kv_transfer_params)
        if tag is None or request.prompt_token_ids is None:
            return None
        prompt = np.array(request.prompt_token_ids, dtype=np.int32)
        reason = self._reason(request, tag)
        segments: list[Segment] = []
        backend = None
        try:
            segments = split(prompt, tag.segments)
            backend = self._backend(tag)
        except (ValueError, ConfigError):
            logger.exception("TokenDance: request %s is served plainly", request.request_id)
            reason = reason or FallbackReason.UNSUPPORTED_REQUEST
        salt = request.cache_salt or ""
        if tag.automatic:
            adapter = request.lora_request.lora_name if request.lora_request else None
            name = self._sessions.name((salt, adapter), segments)
            tag = replace(tag, round_id=name, session_id=name)
            if sum(len(s) for s in segments[1:-1]) < self._settings.min_reused_tokens:
                reason = reason or FallbackReason.NO_SHARED_SEGMENTS  # nothing to wait for
        source = backend.source if backend is not None else "master"
        family = (salt, tag.session_id, *([] if source == "master" else [source]))
        answer = int(request.max_tokens)
        return Member(
            request,
            tag,
            family,
            prompt,
            segments,
            backend,
            now,
            filler=self.filler,
            page_size=self.page_size,
            answer=answer,
            open_ended=answer >= self._max_tokens - len(prompt),
            reason=reason,
        )

    def _reason(self, request: Request, tag: EngineTag) -> FallbackReason | None:
        if self.unsupported is not None:
            return FallbackReason.UNSUPPORTED_MODEL
        plain = request.lora_request or request.mm_features or request.prompt_embeds is not None
        if plain or request.skip_reading_prefix_cache or request.sampling_params is None:
            return FallbackReason.UNSUPPORTED_REQUEST
        return FallbackReason.EXACT_REQUESTED if tag.fidelity == "exact" else None

    def _backend(self, tag: EngineTag) -> Backend | None:
        if tag.fidelity == "exact":
            return None
        first = self._settings.fast_tokens if tag.fidelity == "fast" else self._settings.balanced_tokens
        return make_backend(tag.backend or self._settings.default_backend, first, tag.options)


def _gate(config: VllmConfig, kv_cache_config: KVCacheConfig) -> str | None:
    try:
        check_config(config)
    except UnsupportedError as error:
        return str(error)
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "more than one KV cache group: not supported"
    return None
