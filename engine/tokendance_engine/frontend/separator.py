"""Split wire text at `<TTSEP>` and tokenize each segment on its own, identically wherever it stands."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokendance_sdk.blocks import unescape
from tokendance_sdk.protocol import SEPARATOR

from tokendance_engine.errors import RequestRejectedError

Encode = Callable[[str, bool], Sequence[int]]
"""(text, add special tokens) -> token ids, never truncated."""
Decode = Callable[[list[int]], str]

_PROBE = ("Hello, world", " again.\n", "[Klaus]", "\n", "it's noon", " 它们在湖边见面。", "x=1")
"""Segments whose ids, joined, must decode to the joined text, or the tokenizer cannot be split."""


@dataclass(frozen=True, slots=True)
class Segmented:
    """A tokenized prompt.

    Attributes:
        token_ids: ids of the whole prompt, separators left out.
        boundaries: token offset of each separator, ascending; equal offsets enclose an empty segment.
            Empty if the tokenizer cannot be split.
        text: the prompt as the model sees it, without separators and escapes.
    """

    token_ids: list[int]
    boundaries: tuple[int, ...]
    text: str


class TokenCache:
    """Least recently used token ids by text, bounded in bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._used = 0
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str) -> array[int] | None:
        """The ids of `text` (not to be changed), or None."""
        with self._lock:
            if text in self._ids:
                self._ids.move_to_end(text)
                return self._ids[text]
        return None

    def put(self, text: str, ids: array[int]) -> None:
        """Keep `ids`, dropping the least recently used; a text larger than the whole cache is not kept."""
        size = self._size(text, ids)
        with self._lock:
            if text in self._ids or size > self._max:
                return
            self._ids[text] = ids
            self._used += size
            while self._used > self._max:
                self._used -= self._size(*self._ids.popitem(last=False))

    @property
    def used_bytes(self) -> int:
        """Bytes held now: text (at 4 bytes per character at most) and ids."""
        return self._used

    @staticmethod
    def _size(text: str, ids: array[int]) -> int:
        return 4 * len(text) + ids.itemsize * len(ids) + 200


class Segmenter:
    """Splits and tokenizes prompts for one tokenizer.

    Args:
        encode, decode: the tokenizer.
        max_segments: most segments in one prompt.
        cache_bytes: bound of the cache of tokenized segments.
    """

    def __init__(
        self, encode: Encode, decode: Decode, *, max_segments: int, cache_bytes: int = 64 << 20
    ) -> None:
        self._encode = encode
        self._max_segments = max_segments
        self._cache = TokenCache(cache_bytes)
        self._specials = self._find_specials()
        joined = [token for text in _PROBE for token in encode(text, False)]
        self.splittable = self._specials is not None and decode(joined) == "".join(_PROBE)
        """Whether segments can be tokenized on their own; if not, boundaries are dropped (reuse is off)."""

    def split(self, wire: str, *, add_special_tokens: bool) -> Segmented:
        """Tokenize wire text; special tokens go before the first and after the last segment only.

        Raises:
            RequestRejectedError: 413, more segments than allowed.
        """
        count = wire.count(SEPARATOR) + 1
        if count > self._max_segments:
            raise RequestRejectedError(
                f"prompt: got {count} segments; allowed: at most {self._max_segments} (max_segments)",
                status=413,
                param="prompt",
            )
        texts = [unescape(segment) for segment in wire.split(SEPARATOR)]
        text = "".join(texts)
        if not self.splittable or self._specials is None:
            return Segmented(list(self._encode(text, add_special_tokens)), (), text)
        before, after = self._specials if add_special_tokens else ((), ())
        ids = list(before)
        boundaries: list[int] = []
        for each in texts:
            ids.extend(self.tokenize(each))
            boundaries.append(len(ids))
        ids.extend(after)
        return Segmented(ids, tuple(boundaries[:-1]), text)

    def whole(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of text as vLLM itself tokenizes it: unsplit, a separator being plain text."""
        return list(self._encode(text, add_special_tokens))

    def tokenize(self, text: str) -> array[int]:
        """Ids of one segment, without special tokens, from the cache where it was seen before."""
        ids = self._cache.get(text)
        if ids is None:
            ids = array("i", self._encode(text, False) if text else ())
            self._cache.put(text, ids)
        return ids

    def _find_specials(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        plain, full = list(self._encode("a", False)), list(self._encode("a", True))
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return tuple(full[:start]), tuple(full[start + len(plain) :])
        return None
