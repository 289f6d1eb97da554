"""An OpenAI client whose chat completions become members of the open round they are made in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tokendance_sdk.gathering import MemberCall, Seat, current_seat
from tokendance_sdk.results import AgentResult
from tokendance_sdk.wire import CHAT

Client = TypeVar("Client", bound=AsyncOpenAI)

_RAW = "X-Stainless-Raw-Response"


def joining(client: Client) -> Client:
    """A copy of `client` (same address, key, connections) for frameworks that call the model themselves.

    Outside a round's seat it behaves like `client`. Inside, an agent's first chat completion goes out with the round's
    one request; later ones (a tool loop) go alone, with the round's boundaries and a tag. Tools, structured output and
    streams work as ever; a failed member is a `MemberFailedError`.
    """
    copy = client.copy()
    # Resources look `post` up on the client when they are first used; no public hook is as narrow.
    cast("Any", copy).post = _Post(copy)
    return copy


class _Post:
    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self._plain_post = client.post

    async def __call__(self, path: str, *, cast_to: Any, **arguments: Any) -> Any:
        seat = current_seat()
        options = dict(arguments.get("options") or {})
        raw = _RAW in (options.get("headers") or {})
        body = {**(arguments.get("body") or {}), **(options.pop("extra_json", None) or {})}
        if seat is None or path != CHAT or body.get("n", 1) not in (1, None):
            return await self._plain_post(path, cast_to=cast_to, **arguments)
        if raw or not seat.round.takes(seat.agent):
            return await self._alone(seat, cast_to, body, {**arguments, "options": options})
        stream = bool(arguments.get("stream"))
        call = MemberCall(seat, self._client, body, _round_options(options), stream)
        seat.round.join(call)
        if stream:
            return MemberStream(call)
        answer = _completion(call, await call.result())
        parse = options.get("post_parser")
        return parse(answer) if callable(parse) else answer

    async def _alone(self, seat: Seat, cast_to: Any, body: dict[str, Any], arguments: dict[str, Any]) -> Any:
        opened = seat.round
        turn = opened.turn(seat.agent)
        round_id = f"{opened.round_id}.{turn}" if turn else opened.round_id
        arguments["body"] = opened.series.solo_body(self._client, seat.agent, round_id, body)
        return await self._plain_post(CHAT, cast_to=cast_to, **arguments)


class MemberStream(AsyncStream[ChatCompletionChunk]):
    """One member's part of a streamed round, as the client's own stream."""

    def __init__(self, call: MemberCall) -> None:
        self._call = call
        self._over = False
        self._made = {"id": _answer_id(call), "created": int(time.time()), "model": call.body["model"]}
        # helpers of the client close a stream through its response
        self.response = cast("Any", _Response(self))

    async def __anext__(self) -> ChatCompletionChunk:
        if self._over or self._call.pieces is None:
            raise StopAsyncIteration
        try:
            piece = await self._call.pieces.get()
        except BaseException:
            await self.close()
            raise
        if isinstance(piece, dict):
            data = {**self._made, "object": "chat.completion.chunk", **piece}
            return ChatCompletionChunk.construct(None, **data)
        self._over = True
        if piece is not None:
            raise piece
        raise StopAsyncIteration

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        while True:
            try:
                yield await self.__anext__()
            except StopAsyncIteration:
                return

    async def close(self) -> None:
        """Give the answer up; no-op after its end."""
        if not self._over:
            self._over = True
            self._call.give_up()


class _Response:
    def __init__(self, stream: MemberStream) -> None:
        self._stream = stream
        self.headers: dict[str, str] = {}

    async def aclose(self) -> None:
        await self._stream.close()


def _completion(call: MemberCall, result: AgentResult) -> ChatCompletion:
    """The result as the client's own type; fields that it does not know (the report) stay on it."""
    report = None if result.report is None else result.report.model_dump(mode="json")
    return ChatCompletion.construct(
        None,
        id=_answer_id(call),
        object="chat.completion",
        created=int(time.time()),
        model=call.body["model"],
        choices=list(result.choices),
        usage=result.usage,
        tokendance=report,
    )


def _answer_id(call: MemberCall) -> str:
    return f"chatcmpl-{call.round_id}-{call.agent}"


def _round_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of one call as arguments of `rounds.create`."""
    own = {name: value for name, value in (options.get("headers") or {}).items() if isinstance(value, str)}
    headers = {name: value for name, value in own.items() if not name.lower().startswith("x-stainless")}
    named = {
        "timeout": options.get("timeout"),
        "extra_headers": headers,
        "extra_query": options.get("params"),
    }
    return {name: value for name, value in named.items() if value}
