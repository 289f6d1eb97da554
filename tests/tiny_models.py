"""Tiny models with random weights, made in seconds: the shapes that vLLM knows, without their knowledge.

Run as a script to write one: `python tests/tiny_models.py qwen3 /tmp/tiny-qwen3`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokendance_sdk.demo_model import ensure_smollm2

# Queries and keys of freshly initialised models are so small that attention is nearly uniform and a wrong key
# changes nothing that a test could see.
ATTENTION_GAIN = 6.0
# And what attention brings must outweigh the token itself, or the answer would only echo the last token.
VALUE_GAIN = 6.0
NORM_GAIN = 3.0  # where keys are normalised (Qwen3), only the norm's weight can do that


@dataclass(frozen=True, slots=True)
class Shape:
    """What sets an architecture apart: the config class, and the fields that differ from `COMMON`."""

    config: str
    fields: dict[str, Any] = field(default_factory=dict)


COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

SHAPES: dict[str, Shape] = {
    "llama": Shape(
        "LlamaConfig", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
    ),
    "qwen2": Shape("Qwen2Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": Shape(
        "Qwen3Config", {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    ),
    "mistral": Shape(
        "MistralConfig",
        {
            "head_dim": 32,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    # Windows in most layers: nothing of it may be reused.
    "gemma3": Shape(
        "Gemma3TextConfig",
        {"head_dim": 32, "num_hidden_layers": 6, "sliding_window": 64, "query_pre_attn_scalar": 32},
    ),
}
_LLAMA = SHAPES["llama"]
SHAPES |= {
    name: Shape("LlamaConfig", {**_LLAMA.fields, "rope_parameters": parameters})
    for name, parameters in {
        "yarn": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        "llama3": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        "partial": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
    }.items()
}


def make_tiny_model(
    shape: str,
    out: Path,
    *,
    tokenizer: Path | None = None,
    seed: int = 0,
    dtype: str = "float32",
    **changes: Any,
) -> Path:
    """Write a random-weight model of `shape` with the demo model's tokenizer to `out` and return `out`.

    Args:
        shape: a name in `SHAPES`.
        tokenizer: folder of the tokenizer; default: the demo model's.
        seed: of the weights; the same seed gives the same bytes.
        dtype: of the saved weights: `float32`, `bfloat16` or `float16`.
        changes: config fields to change, for example `num_key_value_heads=1` or `rope_parameters={...}`.

    Raises:
        KeyError: unknown shape; the message lists the known ones.
    """
    import torch
    import transformers

    if shape not in SHAPES:
        raise KeyError(f"unknown shape {shape!r}; known: {', '.join(sorted(SHAPES))}")
    vocabulary = transformers.AutoTokenizer.from_pretrained(tokenizer or ensure_smollm2())
    end = vocabulary.eos_token_id
    fields = {
        **COMMON,
        **SHAPES[shape].fields,
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": end,
        **changes,
    }
    config = getattr(transformers, SHAPES[shape].config)(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj.weight" in name or "k_proj.weight" in name:
                weight.mul_(ATTENTION_GAIN)
            elif "v_proj.weight" in name or "o_proj.weight" in name:
                weight.mul_(VALUE_GAIN)
            elif "q_norm" in name:
                weight.mul_(NORM_GAIN)
    model.generation_config = transformers.GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.save_pretrained(out)
    vocabulary.save_pretrained(out)
    return out


if __name__ == "__main__":
    print(make_tiny_model(sys.argv[1], Path(sys.argv[2])))
