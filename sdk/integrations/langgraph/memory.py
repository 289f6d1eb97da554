"""Texts that several agents may see, found again in their prompts.

Nothing has to be marked in the graph's code: what the model said is remembered, and where it stands whole in a later
prompt, it is a block. `shared(text)` adds anything else.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

LEAST = 32
"""Shortest text worth a block (characters): shorter ones are computed faster than they are looked up."""

SPLITS, LONG = 8, 1024
"""So many contents of at least so many characters have their pieces kept, a session."""

T = TypeVar("T")
Span = tuple[int, int]
Piece = tuple[str, bool]
"""Text, and whether it is known."""


class KnownTexts:
    """A bounded set of texts, the least recently seen dropped first. Threads may share it.

    Attributes:
        least: characters a text must have to be remembered.
        most: characters that all texts may have together.
        changes: how often a text came or went.
        splits: contents seen last: `changes` of all memories then, and what was made of the pieces. Agents of a round
            often see the same text, and looking a long one up takes a millisecond.
    """

    def __init__(self, least: int = LEAST, most: int = 1 << 20) -> None:
        if least < 2:
            raise ValueError(f"got least={least}; allowed: 2 characters or more")
        self.least = least
        self.most = most
        self.changes = 0
        self.splits: OrderedDict[str, tuple[tuple[int, ...], Any]] = OrderedDict()
        # A text is filed under its beginning, `least` characters; and of each window of a beginning, the shifts at
        # which it occurs in any are noted. A prompt is then looked up at every `stride`-th place only: one of those
        # places falls on a window of the beginning, wherever a text begins.
        self._stride = least // 2
        self._width = least - self._stride + 1
        self._texts: OrderedDict[str, None] = OrderedDict()
        self._beginnings: dict[str, list[str]] = {}
        self._windows: dict[str, Counter[int]] = {}
        self._version = 0
        self._simple: dict[str, tuple[int, bool]] = {}
        self._size = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, text: object) -> bool:
        return text in self._texts

    def add(self, text: str) -> None:
        """Remember `text`, and what it is without white space at its ends, where prompts often hold that."""
        for variant in dict.fromkeys((text, text.strip())):
            if self.least <= len(variant) <= self.most:
                with self.lock:
                    self._add(variant)

    def candidates(self, content: str) -> set[Span]:
        """Every place in `content` where a whole known text stands, and no word is cut at its edges."""
        seen: set[Span] = set()
        if not self._texts:
            return seen
        windows, width, stride = self._windows, self._width, self._stride
        at, ends = 0, len(content) - width + 1
        with self.lock:
            while True:
                place = next((n for n in range(at, ends, stride) if content[n : n + width] in windows), None)
                if place is None:
                    return seen
                at = place + stride
                for start, text in self._starts(content, place):
                    end = start + len(text)
                    if not content.startswith(text, start) or _cuts_a_word(content, start, end):
                        continue
                    self._texts.move_to_end(text)
                    seen.add((start, end))
                    if self._is_simple(text):
                        at = max(at, end - self.least + 1)

    def _starts(self, content: str, place: int) -> list[tuple[int, str]]:
        """Texts whose beginnings stand in `content` so that the window at `place` is part of them."""
        return [
            (place - shift, text)
            for shift in self._windows.get(content[place : place + self._width], ())
            if place >= shift
            for text in self._beginnings.get(content[place - shift : place - shift + self.least], ())
        ]

    def _is_simple(self, text: str) -> bool:
        """Whether no known text begins within `text`, so that its inside need not be looked at in every prompt."""
        known = self._simple.get(text)
        if known is None or known[0] != self._version:
            places = range(1, len(text) - self._width + 1, self._stride)
            simple = all(start < 1 for place in places for start, _ in self._starts(text, place))
            known = self._simple[text] = (self._version, simple)
        return known[1]

    def _add(self, text: str) -> None:
        if text in self._texts:
            self._texts.move_to_end(text)
            return
        self._texts[text] = None
        self.changes += 1
        self._size += len(text)
        alike = self._beginnings.setdefault(text[: self.least], [])
        alike.append(text)
        if len(alike) == 1:
            self._version += 1
            for shift in range(self._stride):
                self._windows.setdefault(text[shift : shift + self._width], Counter())[shift] += 1
        while self._size > self.most:
            self._drop(next(iter(self._texts)))

    def _drop(self, text: str) -> None:
        del self._texts[text]
        self.changes += 1
        self._simple.pop(text, None)
        self._size -= len(text)
        alike = self._beginnings[text[: self.least]]
        alike.remove(text)
        if alike:
            return
        del self._beginnings[text[: self.least]]
        for shift in range(self._stride):
            window = text[shift : shift + self._width]
            self._windows[window] -= Counter({shift: 1})
            if not self._windows[window]:
                del self._windows[window]


def _cuts_a_word(content: str, start: int, end: int) -> bool:
    return (start > 0 and content[start].isalnum() and content[start - 1].isalnum()) or (
        end < len(content) and content[end].isalnum() and content[end - 1].isalnum()
    )


def split(content: str, memories: Sequence[KnownTexts]) -> list[Piece]:
    """`content` in pieces: the longest known texts win, pieces never overlap."""
    found: set[Span] = set().union(*(memory.candidates(content) for memory in memories))
    return _pieces(content, found)


def split_once(content: str, memories: Sequence[KnownTexts], made: Callable[[list[Piece]], T]) -> T:
    """`made(split(content, memories))`, kept for the next agent that sees the text. Never change the result."""
    if len(content) < LONG or not memories:
        return made(split(content, memories))
    seen, changes = memories[0].splits, tuple(memory.changes for memory in memories)
    last = seen.get(content)
    if last is not None and last[0] == changes:
        return cast("T", last[1])
    result = made(split(content, memories))
    with memories[0].lock:
        seen[content] = changes, result
        seen.move_to_end(content)
        while len(seen) > SPLITS:
            seen.popitem(last=False)
    return result


def _pieces(content: str, found: set[Span]) -> list[Piece]:
    taken: list[Span] = []
    for span in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
        place = bisect_left(taken, span)
        before = place == 0 or taken[place - 1][1] <= span[0]
        if before and (place == len(taken) or span[1] <= taken[place][0]):
            insort(taken, span)
    pieces: list[Piece] = []
    end = 0
    for start, stop in [*taken, (len(content), len(content))]:
        if start > end:
            pieces.append((content[end:start], False))
        if stop > start:
            pieces.append((content[start:stop], True))
        end = stop
    return pieces


class Sessions:
    """One `KnownTexts` for each session, the least recently used dropped first."""

    def __init__(self, least: int = LEAST, most: int = 128) -> None:
        self.least = least
        self.most = most
        self._sessions: OrderedDict[str, KnownTexts] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def of(self, session_id: str) -> KnownTexts:
        """The session's texts; empty ones for a new session."""
        with self._lock:
            if session_id not in self._sessions:
                self._sessions[session_id] = KnownTexts(self.least)
            self._sessions.move_to_end(session_id)
            while len(self._sessions) > self.most:
                self._sessions.popitem(last=False)
            return self._sessions[session_id]


MARKED = KnownTexts(LEAST, 4 << 20)
"""What `shared` was given, in this process."""


def shared(text: str) -> str:
    """Say that several agents will see `text` (a document, a brief); returns it unchanged.

    From now on it is a block wherever it stands whole in a prompt. No-op for texts shorter than 32 characters.

    Example:
        >>> prompt = f"Read this:\\n{shared('A report that all agents are given to read.')}\\nIs it true?"
    """
    MARKED.add(text)
    return text


def texts_in(value: Any, depth: int = 8) -> Iterator[str]:
    """Every text in a graph's state that an agent may have said: all but messages of people and of the system."""
    if isinstance(value, str):
        yield value
    elif depth == 0 or isinstance(value, HumanMessage | SystemMessage | bytes | bytearray):
        return
    elif isinstance(value, BaseMessage):
        yield from texts_in(value.content, depth - 1)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts_in(item, depth - 1)
    elif isinstance(value, Sequence | set | frozenset):
        for item in value:
            yield from texts_in(item, depth - 1)
    elif hasattr(value, "__dict__"):
        yield from texts_in(vars(value), depth - 1)
