"""Find the shared texts in messages that somebody else put together, and make blocks of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tokendance_sdk.blocks import Block
from tokendance_sdk.content import Message, escape_messages

_ROLES = ("system", "developer", "user", "assistant")


def mark_shared(
    members: Mapping[str, Sequence[Mapping[str, Any]]], known: Collection[str] = ()
) -> tuple[dict[str, list[Message]], dict[str, str]]:
    """Messages in the wire form of `/v1/rounds`, shared texts by reference; and the blocks they refer to.

    A text is a message's whole content, or a whole text part of it. It is shared when the messages of two or more
    members have it, or when `known` holds its block id: a text that was shared once keeps its boundaries, and so its
    tokens. Texts are raw; literal separators in them are escaped. `members` is not changed.

    Returns:
        Agent -> messages, and block id -> wire text.

    Example:
        >>> marked, blocks = mark_shared({a: [{"role": "user", "content": "Hi."}] for a in ("ann", "bob")})
        >>> marked["ann"][0]["content"] == [{"type": "block", "ref": ref} for ref in blocks]
        True
    """
    seen = Counter(text for messages in members.values() for text in dict.fromkeys(_texts(messages)))
    references: dict[str, str] = {}
    blocks: dict[str, str] = {}
    for text, count in seen.items():
        block = Block(text)
        if count > 1 or (known and block.id in known):
            references[text] = block.id
            blocks[block.id] = block.wire
    return {agent: [_mark(m, references) for m in messages] for agent, messages in members.items()}, blocks


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if message.get("role") in _ROLES else None
        if isinstance(content, str) and content:
            yield content
        elif isinstance(content, list):
            yield from (part["text"] for part in content if _is_text(part))


def _mark(message: Mapping[str, Any], references: Mapping[str, str]) -> Message:
    content = message.get("content")
    if message.get("role") not in _ROLES:
        return escape_messages([message])[0]
    if isinstance(content, str) and content in references:
        marked: Any = [_block(references[content])]
    elif isinstance(content, list):
        marked = [
            _block(references[part["text"]])
            if _is_text(part) and part["text"] in references
            else escape_messages([part])[0]
            for part in content
        ]
    else:
        return escape_messages([message])[0]
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    return {"role": message["role"], **(escape_messages([rest])[0] if rest else {}), "content": marked}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
        and bool(part["text"])
    )


def _block(reference: str) -> dict[str, str]:
    return {"type": "block", "ref": reference}
