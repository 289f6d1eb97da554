"""Blocks of text, and the escape by which a literal separator in somebody's text forges no boundary."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from tokendance_sdk.protocol import SEPARATOR

JOINER = "\u2060"
"""U+2060 WORD JOINER: invisible, and no tokenizer's business since the engine takes it out again."""

_HEAD, _TAIL = SEPARATOR[0], SEPARATOR[1:]
_LITERAL = re.compile(f"{_HEAD}({JOINER}*){_TAIL}")
_ESCAPED = re.compile(f"{_HEAD}{JOINER}({JOINER}*){_TAIL}")


def escape(text: str) -> str:
    """Give every `<` + n joiners + `TTSEP>` (n >= 0) one more joiner; no literal separator is left.

    Injective, and not idempotent: each call adds a level, each `unescape` takes one away.
    """
    if _TAIL not in text:
        return text
    return _LITERAL.sub(rf"{_HEAD}\1{JOINER}{_TAIL}", text)


def unescape(text: str) -> str:
    """Undo one `escape`: `unescape(escape(text)) == text` for every text.

    Apply it to each segment after splitting at separators, never before. Text without an escape is unchanged.
    """
    return _ESCAPED.sub(rf"{_HEAD}\1{_TAIL}", text)


def strip_separators(wire: str) -> str:
    """Wire text as a plain server should see it: separators out, the segments unescaped and joined."""
    return "".join(unescape(segment) for segment in wire.split(SEPARATOR))


@lru_cache(maxsize=256)  # every agent of a round asks for the same ids; whole texts are held, so few
def _id(text: str) -> str:
    return "b:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of text with an owner.

    Attributes:
        text: raw text, exactly as its author wrote it (separators in it are escaped when it is sent).
        owner: who wrote it, for layouts and labels; None when nobody in particular did.
        shared: True when other agents of the round see the same text; a private block is plain text.

    Example:
        >>> Block("Hello.", owner="klaus").id
        'b:2d8bd7d9bb5f85ba643f0110d50cb506'
    """

    text: str
    owner: str | None = None
    shared: bool = True

    @property
    def id(self) -> str:
        """Hash of the text alone, a valid wire id: the same on every machine, after every retry and resume.

        Two owners of equal text have equal ids, so that the text travels and is computed once.
        """
        return _id(self.text)

    @property
    def wire(self) -> str:
        """The text as it is sent: escaped."""
        return escape(self.text)

    def private(self) -> Block:
        """The same text, seen by its owner only."""
        return replace(self, shared=False)
