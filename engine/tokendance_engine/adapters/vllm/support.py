"""The support gate: what can be reused with this model and engine configuration, and why not.

Part of it is static (read from the configuration), part is measured on the loaded model: the page packing must be
learnable, and moving a key from one position to another must reproduce the key computed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.v1.attention.backend import AttentionType

from tokendance_engine.adapters.vllm.pages import Layer
from tokendance_engine.kernels.rope import RopeTable, rotate

BOUND = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Largest relative error of a re-rotated key: a few roundings of the dtype."""


class UnsupportedError(RuntimeError):
    """Reuse is off for this model or configuration; the message says why."""


def check_config(config: VllmConfig) -> None:
    """The static half of the gate.

    Raises:
        UnsupportedError: naming the setting and its value.
    """
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    reasons = {
        f"pipeline parallel size {parallel.pipeline_parallel_size}": parallel.pipeline_parallel_size > 1,
        f"decode context parallel size {parallel.decode_context_parallel_size}": parallel.decode_context_parallel_size
        > 1,
        f"KV cache dtype {cache.cache_dtype!r}": str(cache.cache_dtype).startswith(
            ("fp8", "int", "nvfp4", "turbo")
        ),
        "speculative decoding": config.speculative_config is not None,
        # The virtual batch would be computed with the adapters of the step's own batch.
        "LoRA adapters": config.lora_config is not None,
        # The virtual batch of one rank would wait for the others in the experts' collectives.
        f"data parallel size {parallel.data_parallel_size} with experts": parallel.data_parallel_size > 1
        and bool(model.is_moe),
        "multi-head latent attention": bool(model.use_mla),
        "encoder-decoder models": bool(model.is_encoder_decoder),
        "multimodal models": bool(model.is_multimodal_model),
        "pooling models": model.runner_type != "generate",
        "prefix caching switched off": not cache.enable_prefix_caching,
    }
    for reason, hit in reasons.items():
        if hit:
            raise UnsupportedError(f"{reason}: not supported")


def max_positions(model: Any) -> int:
    """Positions a model has, at least as many as vLLM serves.

    Args:
        model: vLLM's `ModelConfig`.
    """
    has = getattr(model.hf_text_config, "max_position_embeddings", None) or 0
    return max(int(has), int(model.max_model_len))


def check_groups(groups: Any) -> None:
    """One KV cache group of full attention, or nothing is reused."""
    if len(groups) != 1 or len(groups[0]) != 1:
        raise UnsupportedError("more than one kind of attention layer (hybrid or sliding-window model)")


def read_layers(
    model: torch.nn.Module, caches: Mapping[str, torch.Tensor], forward_context: Mapping[str, Any]
) -> list[Layer]:
    """The attention layers of a model, with their caches and RoPE tables.

    Args:
        model: the loaded model.
        caches: layer name -> pages, as registered by vLLM.
        forward_context: layer name -> attention module.

    Raises:
        UnsupportedError: a layer is not plain causal attention over rotary (or rope-less) keys.
    """
    modules = dict(model.named_modules())
    tables: dict[int, RopeTable] = {}
    layers = []
    for name, cache in caches.items():
        module = forward_context[name]
        impl = module.impl
        window = getattr(impl, "sliding_window", None)
        if window not in (None, -1, (-1, -1)):
            raise UnsupportedError(f"layer {name} has a sliding window of {window}")
        if getattr(module, "attn_type", AttentionType.DECODER) != AttentionType.DECODER:
            raise UnsupportedError(f"layer {name} is not decoder attention")
        if getattr(impl, "alibi_slopes", None) is not None:
            raise UnsupportedError(f"layer {name} uses ALiBi")
        if getattr(module, "kv_sharing_target_layer_name", None):
            raise UnsupportedError(f"layer {name} shares the cache of another layer")
        if cache.dim() != 4 or cache.shape[-1] % 2:
            raise UnsupportedError(f"layer {name} has a cache of shape {tuple(cache.shape)}")
        rotary = getattr(modules.get(name.rpartition(".")[0]), "rotary_emb", None)
        layers.append(Layer(module, cache, _table(rotary, tables, cache) if rotary is not None else None))
    if not layers:
        raise UnsupportedError("the model registered no KV caches")
    if all(layer.rope is None for layer in layers):
        raise UnsupportedError("no rotary embedding was found; positions may enter another way")
    return layers


def _table(rotary: Any, tables: dict[int, RopeTable], cache: torch.Tensor) -> RopeTable:
    if id(rotary) in tables:
        return tables[id(rotary)]
    if not isinstance(rotary, RotaryEmbeddingBase):
        raise UnsupportedError(f"rotary embedding {type(rotary).__name__}")
    table = RopeTable(rotary._compute_cos_sin_cache().float().to(cache.device), bool(rotary.is_neox_style))
    _check_rotation(rotary, table, cache)
    tables[id(rotary)] = table
    return table


@torch.inference_mode()
def _check_rotation(rotary: RotaryEmbeddingBase, table: RopeTable, cache: torch.Tensor) -> None:
    """Re-rotated keys must equal keys computed in place, within a few roundings of the dtype."""
    _, heads, _, width = cache.shape
    dim, dtype = width // 2, cache.dtype
    last = table.cos_sin.shape[0] - 1
    old = torch.tensor([5, last // 3, last, 0, last // 2], device=cache.device)
    new = torch.tensor([last // 2, 7, last // 4, last, 1], device=cache.device)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(len(old), heads * dim, generator=generator).to(cache.device, dtype)

    def at(positions: torch.Tensor) -> torch.Tensor:
        _, key = rotary.forward_native(positions, raw.clone(), raw.clone())
        rows: torch.Tensor = key.view(len(old), heads, dim)
        return rows

    moved = rotate(at(old), *table.difference(old, new), neox=table.neox)
    error = float((moved.float() - at(new).float()).norm() / at(new).float().norm())
    bound = BOUND.get(dtype, 0.0)
    if not error <= bound:
        raise UnsupportedError(
            f"{type(rotary).__name__}: moved keys differ by {error:.2e}, allowed {bound:.0e}"
        )
