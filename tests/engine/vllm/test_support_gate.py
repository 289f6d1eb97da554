"""What the support gate refuses: settings, kinds of layers, and models whose keys cannot be moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.key_probe import check_keys
from tokendance_engine.adapters.vllm.support import UnsupportedError, check_config, check_groups, read_layers
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.v1.attention.backend import AttentionType

HIDDEN, HEADS, DIM = 48, 2, 32
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "partial": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


class Attention(torch.nn.Module):
    """Stands for vLLM's attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.impl = SimpleNamespace(sliding_window=None, alibi_slopes=None)
        self.attn_type = AttentionType.DECODER
        self.kv_sharing_target_layer_name = None

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        raise AssertionError("the attention layer itself must not run")


class Block(torch.nn.Module):
    """An attention module as vLLM's models have it; `after` is what it does to rotated keys.

    Args:
        hidden: a rotary module that the gate cannot find by its name.
    """

    def __init__(self, rotary: Any, after: Any = None, bias: bool = False, hidden: Any = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HEADS * DIM, bias=bias)
        for parameter in self.qkv.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.rotary_emb, self.after, self.elsewhere = rotary, after, [hidden]
        self.attn = Attention()

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        q, k, v = self.qkv(hidden_states).chunk(3, dim=-1)
        for rotary in (self.rotary_emb, *self.elsewhere):
            if rotary is not None:
                q, k = rotary.forward_native(positions, q.clone(), k.clone())
        if self.after is not None:
            k = self.after(k.reshape(-1, HEADS, DIM), positions).reshape(len(k), -1)
        return self.attn(q, k, v)


def rope(kind: str = "default", dtype: torch.dtype = torch.float32) -> Any:
    with set_current_vllm_config(VllmConfig()):
        return get_rope(DIM, 2048, rope_parameters=ROPES[kind], dtype=dtype)


def gate(*blocks: Block, dtype: torch.dtype = torch.float32, change: Any = None) -> list[Any]:
    """The gate on a model of these attention modules."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(blocks)
    model.to(dtype)
    caches = {f"layers.{i}.attn": torch.zeros(4, HEADS, 16, 2 * DIM, dtype=dtype) for i in range(len(blocks))}
    context = {f"layers.{i}.attn": block.attn for i, block in enumerate(blocks)}
    if change is not None:
        change(blocks[-1].attn, caches)
    layers = read_layers(model, caches, context)
    check_keys(model, dict(zip(caches, layers, strict=True)), HIDDEN, dtype)
    assert all("forward" not in block.attn.__dict__ for block in blocks), "a module was left changed"
    return layers


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_of_every_rope_type_move(kind: str, dtype: torch.dtype) -> None:
    (layer,) = gate(Block(rope(kind, dtype)), dtype=dtype)
    assert layer.rope.rot == (DIM // 2 if kind == "partial" else DIM)


def test_biases_and_norms_before_the_rotation_do_not_matter() -> None:
    gate(Block(rope(), bias=True))


def test_layers_without_rotation_are_taken_where_others_rotate() -> None:
    one, two = gate(Block(rope()), Block(None))
    assert one.rope is not None
    assert two.rope is None


def norm(keys: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    return keys / keys.pow(2).mean(-1, keepdim=True).sqrt() * weight


def test_a_norm_without_weights_after_the_rotation_commutes_with_it() -> None:
    """As Llama 4 has it."""
    gate(Block(rope(), after=lambda keys, _: norm(keys)))


SPOILED = {
    "a norm with weights after the rotation": lambda keys, _: norm(keys, torch.linspace(0.5, 2, DIM)),
    "a shift after the rotation": lambda keys, _: keys + 1,
    "a scale by position": lambda keys, positions: keys * (1 + 0.01 * positions)[:, None, None],
}


@pytest.mark.parametrize("what", SPOILED)
def test_keys_that_cannot_be_moved_are_noticed_in_any_layer(what: str) -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.1\.attn: moved keys differ by"):
        gate(Block(rope()), Block(rope(), after=SPOILED[what]))


def test_a_rotation_that_was_not_found_is_noticed() -> None:
    with pytest.raises(UnsupportedError, match="moved keys differ"):
        gate(Block(rope()), Block(None, hidden=rope()))


def test_a_second_rotation_is_noticed() -> None:
    with pytest.raises(UnsupportedError, match="moved keys differ"):
        gate(Block(rope(), hidden=rope("llama3")))


def test_values_that_depend_on_positions_are_noticed() -> None:
    block = Block(rope())
    plain = block.forward

    def forward(positions: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        return plain(positions, hidden_states + positions[:, None] / 100)

    block.forward = forward  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="differ by"):
        gate(block)


def test_a_module_that_cannot_be_run_is_refused_and_left_as_it_was() -> None:
    block = Block(rope())
    block.forward = lambda hidden_states: None  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match=r"could not be checked .*positions"):
        gate(block)
    assert "forward" not in block.attn.__dict__
    block.forward = lambda positions, hidden_states: None  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="was not reached"):
        gate(block)


def _window(attn: Any, caches: Any) -> None:
    attn.impl.sliding_window = (127, 0)


def _encoder(attn: Any, caches: Any) -> None:
    attn.attn_type = AttentionType.ENCODER_ONLY


def _alibi(attn: Any, caches: Any) -> None:
    attn.impl.alibi_slopes = [0.5]


def _sharing(attn: Any, caches: Any) -> None:
    attn.kv_sharing_target_layer_name = "layers.0.attn"


def _shape(attn: Any, caches: Any) -> None:
    name = list(caches)[-1]
    caches[name] = caches[name][:, 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_window, "sliding window"),
        (_encoder, "not decoder attention"),
        (_alibi, "ALiBi"),
        (_sharing, "shares the cache"),
        (_shape, "a cache of shape"),
    ],
)
def test_a_layer_of_another_kind_switches_reuse_off(change: Any, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"layers.1.attn.*{reason}"):
        gate(Block(rope()), Block(rope()), change=change)


def test_a_model_without_any_rotation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no rotary embedding"):
        gate(Block(None))


def test_another_kind_of_rotary_module_is_refused() -> None:
    block = Block(None)
    block.rotary_emb = torch.nn.Identity()
    with pytest.raises(UnsupportedError, match="rotary embedding Identity"):
        gate(block)


def config(**changes: Any) -> Any:
    values = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_size": 1,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "use_mla": False,
        "is_moe": False,
        "is_encoder_decoder": False,
        "is_multimodal_model": False,
        "runner_type": "generate",
        "speculative_config": None,
        "lora_config": None,
        **changes,
    }
    part = SimpleNamespace(**values)
    return SimpleNamespace(
        parallel_config=part,
        cache_config=part,
        model_config=part,
        speculative_config=values["speculative_config"],
        lora_config=values["lora_config"],
    )


def test_a_plain_configuration_passes() -> None:
    check_config(config())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallel size 2"),
        ({"decode_context_parallel_size": 2}, "decode context parallel size 2"),
        ({"cache_dtype": "fp8_e4m3"}, "KV cache dtype 'fp8_e4m3'"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"lora_config": object()}, "LoRA adapters"),
        ({"data_parallel_size": 2, "is_moe": True}, "data parallel size 2 with experts"),
        ({"use_mla": True}, "multi-head latent attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"is_multimodal_model": True}, "multimodal"),
        ({"runner_type": "pooling"}, "pooling"),
        ({"enable_prefix_caching": False}, "prefix caching switched off"),
    ],
)
def test_a_setting_that_rules_reuse_out_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        check_config(config(**changes))


def test_more_than_one_kind_of_layer_is_refused() -> None:
    check_groups([[object()]])
    for groups in ([[object()], [object()]], [[object(), object()]]):
        with pytest.raises(UnsupportedError, match="more than one kind"):
            check_groups(groups)
