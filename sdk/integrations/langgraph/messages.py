"""LangChain's messages as members of a round, and members' answers as LangChain's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
    convert_to_openai_messages,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from tokendance_sdk.blocks import Block, escape
from tokendance_sdk.content import escape_messages
from tokendance_sdk.integrations.langgraph.memory import KnownTexts, Piece, split_once
from tokendance_sdk.protocol import BODY_KEY
from tokendance_sdk.results import AgentResult

_EXTRA = ("reasoning_content", "reasoning", "refusal", "audio", "function_call")
"""Fields of an answer that go into `additional_kwargs`."""


def wire_messages(
    messages: Sequence[BaseMessage], memories: Iterable[KnownTexts]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Messages for `/v1/rounds` with known texts as references, and those texts by id. Other text is escaped."""
    known = tuple(memories)
    blocks: dict[str, str] = {}
    wire = []
    for raw in convert_to_openai_messages(list(messages)):
        content = raw.get("content")
        message = escape_messages([{**raw, "content": None}])[0]
        message["content"] = _content(content, known, blocks)
        if message.get("tool_calls") and not content:
            message["content"] = None
        wire.append(message)
    return wire, blocks


def _content(content: Any, known: Sequence[KnownTexts], blocks: dict[str, str]) -> Any:
    if isinstance(content, str):
        parts = _parts(content, known, blocks)
        return escape(content) if all(part["type"] == "text" for part in parts) else parts
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts += _parts(part["text"], known, blocks)
        else:
            parts += escape_messages([part])
    return parts


def _parts(text: str, known: Sequence[KnownTexts], blocks: dict[str, str]) -> list[dict[str, Any]]:
    parts, found = split_once(text, known, _parts_of)
    blocks.update(found)
    return list(parts)


def _parts_of(pieces: Sequence[Piece]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    parts, blocks = [], {}
    for piece, is_known in pieces:
        if is_known:
            block = Block(piece)
            ref = block.id
            blocks[ref] = block.wire
            parts.append({"type": "block", "ref": ref})
        else:
            parts.append({"type": "text", "text": escape(piece)})
    return parts, blocks


def chat_result(result: AgentResult, model: str, round_id: str) -> ChatResult:
    """A member's whole answer: one generation for each choice."""
    generations = []
    for choice in result.choices:
        reason = choice.get("finish_reason")
        message = ai_message(choice.get("message") or {})
        message.usage_metadata = usage_metadata(result.usage)
        info = {"finish_reason": reason, **_optional(choice, "logprobs", "stop_reason")}
        generations.append(ChatGeneration(message=message, generation_info=info))
    report = result.report.model_dump(mode="json") if result.report is not None else {"round_id": round_id}
    output = {"token_usage": result.usage, "model_name": model, "model_provider": "openai", BODY_KEY: report}
    return ChatResult(generations=generations, llm_output=output)


def ai_message(message: Mapping[str, Any]) -> AIMessage:
    """An assistant message of a chat completion."""
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in message.get("tool_calls") or ():
        try:
            parsed = parse_tool_call(dict(call), return_id=True)
        except Exception as error:
            invalid.append(make_invalid_tool_call(dict(call), str(error)))
        else:
            calls.append(cast("ToolCall", parsed))
    return AIMessage(
        content=message.get("content") or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs=_optional(message, *_EXTRA),
    )


def chunk_of(data: Mapping[str, Any], model: str) -> ChatGenerationChunk | None:
    """One chunk of a member's streamed answer (its first choice); None for one that says nothing."""
    choice = next((each for each in data.get("choices") or () if each.get("index", 0) == 0), None)
    usage, report = usage_metadata(data.get("usage")), data.get(BODY_KEY)
    if choice is None and usage is None and not report:
        return None
    delta = (choice or {}).get("delta") or {}
    calls = [
        tool_call_chunk(
            name=(call.get("function") or {}).get("name"),
            args=(call.get("function") or {}).get("arguments"),
            id=call.get("id"),
            index=call.get("index"),
        )
        for call in delta.get("tool_calls") or ()
    ]
    message = AIMessageChunk(
        content=delta.get("content") or "",
        tool_call_chunks=calls,
        additional_kwargs=_optional(delta, *_EXTRA),
        usage_metadata=usage,
    )
    info = _optional(choice or {}, "finish_reason", "logprobs", "stop_reason")
    if "finish_reason" in info:
        info |= {"model_name": model, "model_provider": "openai"}
    if report:
        info[BODY_KEY] = report
    return ChatGenerationChunk(message=message, generation_info=info or None)


def usage_metadata(usage: Mapping[str, Any] | None) -> UsageMetadata | None:
    """OpenAI's usage in LangChain's words."""
    if not usage:
        return None
    prompt, completion = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return UsageMetadata(
        input_tokens=prompt,
        output_tokens=completion,
        total_tokens=int(usage.get("total_tokens") or prompt + completion),
        input_token_details=InputTokenDetails() if cached is None else InputTokenDetails(cache_read=cached),
    )


def _optional(source: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names if source.get(name) is not None}
