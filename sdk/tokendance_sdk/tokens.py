"""Token counts before anything is sent: per block, per prompt, and what a round shares.

Counts are of the text: what a chat template adds is not known here (`template` allows for it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokendance_sdk.blocks import Block, unescape
from tokendance_sdk.errors import ContextOverflowError, TokenizerError
from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.protocol import SEPARATOR

if TYPE_CHECKING:
    import tiktoken

Counter = Callable[[str], int]
"""Raw text -> number of tokens."""


def tiktoken_counter(encoding: str | tiktoken.Encoding) -> Counter:
    """Count with tiktoken: the name of an encoding, or an `Encoding` of your own.

    Raises:
        TokenizerError: no such encoding, or its file is neither cached nor to be had.
    """
    import tiktoken

    if isinstance(encoding, str):
        names = tiktoken.list_encoding_names()
        if encoding not in names:
            raise TokenizerError(
                f"got encoding {encoding!r}; allowed: {', '.join(names)}, or an Encoding object"
            )
        try:
            found = tiktoken.get_encoding(encoding)
        except Exception as error:
            raise TokenizerError(
                f"encoding {encoding!r} is not cached and cannot be fetched ({type(error).__name__}); "
                "set TIKTOKEN_CACHE_DIR to a folder that has it, or pass an Encoding or another tokenizer"
            ) from error
    else:
        found = encoding
    return lambda text: len(found.encode(text, disallowed_special=()))


def huggingface_counter(tokenizer: str | Path | Any) -> Counter:
    """Count with a Hugging Face tokenizer: a folder or `tokenizer.json`, or a tokenizer of either library.

    Raises:
        TokenizerError: no such file, or the `tokenizers` package is missing.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer = _load(Path(tokenizer))
    encode = tokenizer.encode

    def count(text: str) -> int:
        ids = encode(text, add_special_tokens=False)
        return len(getattr(ids, "ids", ids))

    return count


def _load(path: Path) -> Any:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise TokenizerError(
            f"no tokenizer at {str(file)!r}; allowed: a tokenizer.json, or a folder that has one"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            "the package 'tokenizers' is missing; install it, or pass a tokenizer"
        ) from error
    return Tokenizer.from_file(str(file))


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One agent's prompt in tokens; every segment is counted alone, as the engine tokenizes it."""

    agent: str
    private: int
    shared: int

    @property
    def total(self) -> int:
        """Private and shared."""
        return self.private + self.shared


@dataclass(frozen=True, slots=True)
class RoundTokens:
    """A round in tokens.

    Attributes:
        blocks: block id -> tokens, each distinct shared block once.
    """

    prompts: tuple[PromptTokens, ...]
    blocks: dict[str, int]

    @property
    def total(self) -> int:
        """What a plain engine without prefix caching prefills and stores."""
        return sum(prompt.total for prompt in self.prompts)

    @property
    def unique(self) -> int:
        """What is left when each shared block is computed once; what is recomputed anyway comes on top."""
        return sum(prompt.private for prompt in self.prompts) + sum(self.blocks.values())

    @property
    def shared_ratio(self) -> float:
        """Share of the prompts' tokens that lie in shared blocks, 0 to 1."""
        return sum(prompt.shared for prompt in self.prompts) / self.total if self.total else 0.0

    @property
    def saving(self) -> float:
        """Share of prefill (and of KV) that sharing can save at most, 0 to 1."""
        return 1 - self.unique / self.total if self.total else 0.0


def measure(prompts: Sequence[RoundPrompt], count: Counter) -> RoundTokens:
    """Count a round's prompts; each distinct shared block is counted once."""
    blocks: dict[str, int] = {}
    measured = []
    for prompt in prompts:
        private = shared = 0
        wire = prompt.blocks
        for message in prompt.round_messages:
            content = message.get("content")
            for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
                if part["type"] == "block":
                    ref = part["ref"]
                    if ref not in blocks:
                        blocks[ref] = count(unescape(wire[ref]))
                    shared += blocks[ref]
                elif part["type"] == "text":
                    private += sum(count(unescape(run)) for run in part["text"].split(SEPARATOR) if run)
        measured.append(PromptTokens(prompt.agent, private, shared))
    return RoundTokens(tuple(measured), blocks)


def count_blocks(blocks: Sequence[Block], count: Counter) -> dict[str, int]:
    """Block id -> tokens."""
    return {block.id: count(block.text) for block in blocks}


def check_context(
    prompts: Sequence[RoundPrompt], count: Counter, limit: int, *, answer: int = 0, template: int = 0
) -> RoundTokens:
    """Make sure that every prompt fits before it is sent.

    Args:
        limit: tokens of the model's context.
        answer: tokens to keep free for the answer (`max_tokens`).
        template: tokens that the chat template adds to a prompt.

    Raises:
        ContextOverflowError: the first prompt that does not fit; names the agent and the excess.
    """
    measured = measure(prompts, count)
    for prompt in measured.prompts:
        excess = prompt.total + template + answer - limit
        if excess > 0:
            raise ContextOverflowError(prompt.agent, excess, limit)
    return measured
