"""The tokenizing half of an engine, without an engine: for cutting workloads and counting prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.protocol import SEPARATOR

MAX_CONTEXT = 8192
"""Longest context that benchmarks ask for."""


def context_of(model: str) -> int:
    """The model's longest context, at most `MAX_CONTEXT` tokens; that if its folder does not say."""
    config = Path(model) / "config.json"
    if not config.exists():
        return MAX_CONTEXT
    positions = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings") or MAX_CONTEXT
    return min(MAX_CONTEXT, int(positions))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of one prompt, and where its segments meet."""

    agent: str
    tokens: list[int]
    boundaries: list[int]

    @property
    def history(self) -> list[int]:
        """What stands before the first boundary."""
        return self.tokens[: self.boundaries[0]] if self.boundaries else self.tokens


class Tokens:
    """A model's tokenizer, and its prompts as the engine's front end makes them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def of(cls, model: str) -> Tokens:
        """The tokenizer in a model's folder."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(model))

    def encode(self, text: str) -> list[int]:
        """Token ids without special tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt(self, prompt: RoundPrompt) -> Prompt:
        """Tokenize a round prompt as the engine's front end does: template first, then segment by segment."""
        text = self.tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        tokens: list[int] = []
        boundaries: list[int] = []
        for i, piece in enumerate(text.split(SEPARATOR)):
            if i:
                boundaries.append(len(tokens))
            tokens += self.encode(piece)
        return Prompt(prompt.agent, tokens, boundaries)
