"""Token counts before sending."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiktoken
from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import ContextOverflowError, TokenizerError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.protocol import SEPARATOR
from tokendance_sdk.tokens import check_context, count_blocks, huggingface_counter, measure, tiktoken_counter

SHARED = [Block("one two three", "ann"), Block("four five", "bob")]


def words(text: str) -> int:
    return len(text.split())


def prompts(layout: Layout | None = None) -> list[RoundPrompt]:
    return [RoundPrompt.assemble(who, "my own past", SHARED, layout, "go on") for who in ("ann", "bob", "cy")]


def bytes_encoding() -> tiktoken.Encoding:
    """One token per byte, except that `ab` is one."""
    ranks = {bytes([value]): value for value in range(256)} | {b"ab": 256}
    return tiktoken.Encoding(
        "bytes", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={"<|end|>": 257}
    )


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.shared_first(), Layout.shuffled(1)])
def test_shared_blocks_count_once_and_private_text_per_agent(layout: Layout) -> None:
    measured = measure(prompts(layout), words)
    assert [(p.agent, p.private, p.shared) for p in measured.prompts] == [
        (who, 5, 3 + 2 + 1 + 1) for who in ("ann", "bob", "cy")
    ]
    assert measured.total == 36
    assert measured.unique == 3 * 5 + 7
    assert measured.shared_ratio == pytest.approx(21 / 36)
    assert measured.saving == pytest.approx(1 - 22 / 36)


def test_a_round_that_shares_nothing_saves_nothing() -> None:
    measured = measure([RoundPrompt.assemble("ann", "a b")], words)
    assert (measured.total, measured.unique, measured.shared_ratio, measured.saving) == (2, 2, 0, 0)
    assert measure([], words).saving == 0


def test_each_block_is_tokenized_once_and_as_its_author_wrote_it() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    block = Block(f"literal {SEPARATOR}", "ann")
    agents = [RoundPrompt.assemble(who, "h", [block], label=None) for who in ("ann", "bob", "cy")]
    measured = measure(agents, count)
    assert counted.count(block.text) == 1
    assert measured.blocks == count_blocks([block], count) == {block.id: len(block.text)}


def test_the_guard_names_the_agent_and_the_excess() -> None:
    agents = [*prompts(), RoundPrompt.assemble("long", "x " * 50, SHARED, task="go on")]
    assert check_context(prompts(), words, 12).total == 36
    with pytest.raises(
        ContextOverflowError, match=r"agent 'long' exceeds the context by 34 tokens; allowed: 40"
    ) as raised:
        check_context(agents, words, 40, answer=10, template=5)
    assert (raised.value.agent, raised.value.excess) == ("long", 34)
    with pytest.raises(ContextOverflowError, match="by 1 tokens"):
        check_context(prompts(), words, 12, answer=1)


def test_tiktoken_counts_with_an_encoding_of_ones_own() -> None:
    count = tiktoken_counter(bytes_encoding())
    assert [count(text) for text in ("", "ab", "abc", "é", "<|end|>")] == [0, 1, 2, 2, 7]


def test_an_unknown_encoding_lists_the_known_ones() -> None:
    with pytest.raises(TokenizerError, match=r"got encoding 'cl200'; allowed: .*cl100k_base"):
        tiktoken_counter("cl200")


def test_an_encoding_that_cannot_be_had_offline_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    with pytest.raises(TokenizerError, match=r"'p50k_base' is not cached.*TIKTOKEN_CACHE_DIR"):
        tiktoken_counter("p50k_base")


def test_a_hugging_face_tokenizer_counts_from_file_folder_and_object(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, str(tmp_path / "tokenizer.json"), made):
        assert huggingface_counter(source)("one two three") == 3


def test_special_tokens_are_not_counted_for_every_segment() -> None:
    model = os.environ.get("TOKENDANCE_TEST_MODEL")
    if not model:
        pytest.skip("TOKENDANCE_TEST_MODEL is not set")
    transformers = pytest.importorskip("transformers")
    count = huggingface_counter(transformers.AutoTokenizer.from_pretrained(model))
    assert count("") == 0
    assert count("Hello") == huggingface_counter(model)("Hello") == 1


def test_a_missing_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*tokenizer.json'; allowed"):
        huggingface_counter(tmp_path)
