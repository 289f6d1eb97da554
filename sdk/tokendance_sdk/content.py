"""Message content on the wire: block parts inlined between separators, or separators taken out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokendance_sdk.blocks import escape, strip_separators
from tokendance_sdk.protocol import SEPARATOR

Message = dict[str, Any]
"""One OpenAI chat message; its content may also hold `{"type": "block", "ref": ...}` parts."""


def join(pieces: Iterable[tuple[str, bool]]) -> str:
    """Concatenate (wire text, is a block) pieces with a separator at every edge of a block.

    Touching edges share one, also with a separator that stands in the text there; empty pieces leave no
    trace.
    """
    text = ""
    pending = False
    for piece, is_block in pieces:
        if not piece:
            continue
        boundary = (pending or is_block) and not text.endswith(SEPARATOR)
        if boundary and not piece.startswith(SEPARATOR):
            text += SEPARATOR
        text += piece
        pending = is_block
    return text + SEPARATOR if pending and not text.endswith(SEPARATOR) else text


def expand_messages(messages: Sequence[Mapping[str, Any]], blocks: Mapping[str, str]) -> list[Message]:
    """Replace block parts by their text between separators; runs of text parts become one text.

    Content that was text and blocks only becomes a string, so that no chat template puts newlines between
    parts. `messages` is not changed. A reference that `blocks` lacks is a `KeyError` (the request model
    refuses it before).
    """
    return [_expand(message, blocks) for message in messages]


def _expand(message: Mapping[str, Any], blocks: Mapping[str, str]) -> Message:
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return dict(message)
    parts: list[Any] = []
    run: list[tuple[str, bool]] = []
    for part in [*content, None]:
        kind = part["type"] if part is not None else None
        if kind == "block":
            run.append((blocks[part["ref"]], True))
        elif kind == "text":
            run.append((part["text"], False))
        else:
            if run:
                parts.append({"type": "text", "text": join(run)})
                run = []
            if part is not None:
                parts.append(part)
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {**message, "content": parts[0]["text"]}
    return {**message, "content": parts}


def strip_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Wire messages as a plain server should see them: no separators, no escapes."""
    return [_map_strings(message, strip_separators) for message in messages]


def escape_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raw messages as wire messages: every literal separator in any of their strings is escaped."""
    return [_map_strings(message, escape) for message in messages]


def _map_strings(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
