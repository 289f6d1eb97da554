"""Segments tokenize alone and identically; nothing a person types forges a boundary."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.separator import Segmenter, TokenCache
from tokendance_sdk.blocks import escape
from tokendance_sdk.protocol import SEPARATOR
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "Hello, world again.\n[Klaus] it's noon x=1",
    "Isabella plans a party at Hobbs Cafe.\n\n它们在湖边见面。",
]


def byte_level(specials: bool) -> Tokenizer:
    """A byte-level BPE tokenizer, as GPT-2's, with or without <s> ... </s> around a prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return tokenizer


def prefix_space() -> Tokenizer:
    """A tokenizer that puts a space before each text, as some SentencePiece models do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def segmenter(tokenizer: Tokenizer, calls: list[str] | None = None, max_segments: int = 4096) -> Segmenter:
    def encode(text: str, specials: bool) -> list[int]:
        if calls is not None:
            calls.append(text)
        return list(tokenizer.encode(text, add_special_tokens=specials).ids)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    return Segmenter(encode, decode, max_segments=max_segments)


PLAIN = byte_level(specials=False)
WITH_SPECIALS = byte_level(specials=True)
both = pytest.mark.parametrize("tokenizer", [PLAIN, WITH_SPECIALS], ids=["no-bos", "bos"])


@both
def test_a_block_has_the_same_ids_after_eight_histories_and_is_tokenized_once(tokenizer: Tokenizer) -> None:
    calls: list[str] = []
    split = segmenter(tokenizer, calls)
    block = "Isabella plans a party at Hobbs Cafe."
    seen = set()
    for agent in range(8):
        wire = "x" * agent + f" I am {agent}.{SEPARATOR}{block}{SEPARATOR}\nWhat now?"
        done = split.split(wire, add_special_tokens=True)
        start, end = done.boundaries
        seen.add(tuple(done.token_ids[start:end]))
    assert seen == {tuple(tokenizer.encode(block, add_special_tokens=False).ids)}
    assert calls.count(block) == 1


def test_special_tokens_stand_at_the_ends_of_the_prompt_only() -> None:
    done = segmenter(WITH_SPECIALS).split(f"a{SEPARATOR}b", add_special_tokens=True)
    a, b = (WITH_SPECIALS.encode(text, add_special_tokens=False).ids for text in "ab")
    assert done.token_ids == [0, *a, *b, 1]
    assert done.boundaries == (1 + len(a),)
    assert segmenter(WITH_SPECIALS).split("a", add_special_tokens=False).token_ids == a


def test_empty_segments_give_repeated_offsets() -> None:
    done = segmenter(PLAIN).split(f"{SEPARATOR}{SEPARATOR}a{SEPARATOR}", add_special_tokens=False)
    tokens = len(done.token_ids)
    assert done.boundaries == (0, 0, tokens)


def test_a_prompt_of_separators_alone_is_empty() -> None:
    done = segmenter(PLAIN).split(SEPARATOR * 3, add_special_tokens=False)
    assert (done.token_ids, done.boundaries, done.text) == ([], (0, 0, 0), "")


def test_text_without_a_separator_is_tokenized_as_ever() -> None:
    text = "Hello, world again.\nit's noon"
    done = segmenter(WITH_SPECIALS).split(text, add_special_tokens=True)
    assert done.token_ids == WITH_SPECIALS.encode(text).ids
    assert done.boundaries == ()


words = st.sampled_from([*"<>TSEP\u2060 a\n它", "<TTSEP>", "<\u2060TTSEP>", "TTSEP>"])
pieces = st.lists(words, max_size=8).map("".join)


@given(st.lists(pieces, min_size=1, max_size=6))
def test_literal_separators_in_text_never_forge_a_boundary_and_come_out_unchanged(texts: list[str]) -> None:
    done = _PLAIN_SEGMENTER.split(SEPARATOR.join(map(escape, texts)), add_special_tokens=False)
    assert len(done.boundaries) == len(texts) - 1
    assert done.text == "".join(texts)
    cuts = [0, *done.boundaries, len(done.token_ids)]
    decoded = [PLAIN.decode(done.token_ids[a:b], skip_special_tokens=False) for a, b in pairwise(cuts)]
    assert decoded == texts


_PLAIN_SEGMENTER = segmenter(PLAIN)


def test_a_tokenizer_that_cannot_be_split_keeps_the_text_and_drops_boundaries() -> None:
    tokenizer = prefix_space()
    split = segmenter(tokenizer)
    assert not split.splittable
    done = split.split(f"Hello,{SEPARATOR} world {escape(SEPARATOR)}", add_special_tokens=False)
    assert done.boundaries == ()
    assert done.text == f"Hello, world {SEPARATOR}"
    assert done.token_ids == tokenizer.encode(done.text, add_special_tokens=False).ids


def test_byte_level_tokenizers_can_be_split() -> None:
    assert segmenter(PLAIN).splittable
    assert segmenter(WITH_SPECIALS).splittable


def test_too_many_segments_are_refused_before_anything_is_tokenized() -> None:
    calls: list[str] = []
    split = segmenter(PLAIN, calls, max_segments=3)
    calls.clear()
    with pytest.raises(RequestRejectedError, match="got 4 segments; allowed: at most 3") as caught:
        split.split("a" + SEPARATOR * 3, add_special_tokens=False)
    assert caught.value.status == 413
    assert calls == []


@pytest.mark.parametrize("size", [0, 1, 500, 5000])
def test_the_cache_stays_within_its_bytes_and_forgets_the_oldest(size: int) -> None:
    cache = TokenCache(size)
    for number in range(10, 60):
        cache.put(f"text {number}", array("i", range(20)))
        assert cache.used_bytes <= size
    kept = [number for number in range(10, 60) if cache.get(f"text {number}") is not None]
    assert kept == list(range(60 - len(kept), 60))
    assert len(kept) == min(50, size // _entry_size())


def test_a_text_that_is_used_again_outlives_newer_ones() -> None:
    cache = TokenCache(3 * _entry_size())
    for name in "abc":
        cache.put(f"text {name}x", array("i", range(20)))
    assert cache.get("text ax") is not None
    cache.put("text dx", array("i", range(20)))
    assert cache.get("text ax") is not None
    assert cache.get("text bx") is None


def _entry_size() -> int:
    cache = TokenCache(10_000)
    cache.put("text 10", array("i", range(20)))
    return cache.used_bytes
