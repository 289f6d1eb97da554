"""A tiny model with random weights, for what does not depend on weights: bytes, bits, and whether something drifts."""

from __future__ import annotations

from pathlib import Path

GAIN = 6.0
"""Fresh weights give nearly uniform attention; scaled up, a wrong key or value changes what follows."""


def tiny_model(out: Path) -> str:
    """Write a llama of three layers (two KV heads of 32, 32,768 positions, float32, the demo model's tokenizer)."""
    import torch
    import transformers
    from tokendance_sdk.demo_model import ensure_smollm2

    if (out / "config.json").is_file():
        return str(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ensure_smollm2())
    end = tokenizer.eos_token_id
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=end,
        pad_token_id=end,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "v_proj", "o_proj")):
                weight.mul_(GAIN)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return str(out)
