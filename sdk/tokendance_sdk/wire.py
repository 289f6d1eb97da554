"""The few things both clients need from the `openai` package: streams of events, and errors as values."""

from __future__ import annotations

import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, cast

from openai import APIStatusError, AsyncOpenAI, AsyncStream, OpenAI, OpenAIError, Stream

from tokendance_sdk.errors import RoundStreamError
from tokendance_sdk.protocol import ROUNDS_PATH, STATUS_PATH
from tokendance_sdk.requests import RoundCall
from tokendance_sdk.results import AgentError, RawAnswer

ROUNDS = ROUNDS_PATH.removeprefix("/v1")
"""Relative to the client's `base_url`, which ends in `/v1`."""

CHAT = "/chat/completions"

Mode = Literal["auto", "rounds", "plain"]
"""Find out what the server is, or know it: no question asked, no warning given."""

NO_SUCH_ROUTE = (404, 405, 501)


class PlainServerWarning(UserWarning):
    """The server knows nothing of rounds: members are sent one by one, and nothing is shared."""


class EventStream(Stream[object]):
    """Yields (event name, data) for each server-sent event up to `[DONE]`.

    The client's own `Stream` raises at the first `error` object; in a round that is one member's, and the
    others go on.
    """

    def __stream__(self) -> Iterator[object]:
        try:
            for event in self._iter_events():
                if event.data.startswith("[DONE]"):
                    break
                if event.data:
                    yield event.event, event.json()
        finally:
            self.response.close()


class AsyncEventStream(AsyncStream[object]):
    """The async twin of `EventStream`."""

    async def __stream__(self) -> AsyncIterator[object]:
        try:
            async for event in self._iter_events():
                if event.data.startswith("[DONE]"):
                    break
                if event.data:
                    yield event.event, event.json()
        finally:
            await self.response.aclose()


def post(client: OpenAI, path: str, body: dict[str, Any], call: RoundCall) -> RawAnswer:
    """Send `body` with the call's options; the client's own errors pass through."""
    return _raw(client.post(path, cast_to=object, body=body, options=_asking_for_all(call)))


async def post_async(client: AsyncOpenAI, path: str, body: dict[str, Any], call: RoundCall) -> RawAnswer:
    """The async twin of `post`."""
    return _raw(await client.post(path, cast_to=object, body=body, options=_asking_for_all(call)))


def _asking_for_all(call: RoundCall) -> Any:
    # What the client's own `with_raw_response` does: the answer comes with its headers.
    headers = {**(call.options.get("headers") or {}), "X-Stainless-Raw-Response": "true"}
    return {**call.options, "headers": headers}


def _raw(answer: object) -> RawAnswer:
    response = cast("Any", answer)
    return RawAnswer(response.status_code, _lower(response.headers), response.parse())


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def status_url(base_url: object) -> str:
    """Where the status route is: beside `/v1`, not below it."""
    return str(base_url).rstrip("/").removesuffix("/v1") + STATUS_PATH


def is_no_such_route(error: APIStatusError) -> bool:
    """Whether the server may simply not have the route."""
    return error.status_code in NO_SUCH_ROUTE


def error_value(error: Exception) -> AgentError:
    """An exception of one member's request as a value."""
    status = error.status_code if isinstance(error, APIStatusError) else None
    code = getattr(error, "code", None)
    return AgentError(str(error), getattr(error, "type", None) or type(error).__name__, code, status)


def failed_round(error: APIStatusError) -> RawAnswer | None:
    """The round inside an error answer: the server uses an error status when every member failed."""
    body = error.body
    if not isinstance(body, dict) or not isinstance(body.get("results"), list):
        return None
    return RawAnswer(error.status_code, _lower(error.response.headers), body)


def broken_off(round_id: str, error: Exception) -> Exception:
    """What to raise when reading a stream failed: the client's own errors as they are, others by name."""
    if isinstance(error, OpenAIError):
        return error
    return RoundStreamError(f"stream of round {round_id!r} broke off: {type(error).__name__}: {error}")


class ServerKind:
    """Whether this client's server knows rounds: None until the first answer. Shared by threads."""

    def __init__(self, mode: Mode) -> None:
        if mode not in ("auto", "rounds", "plain"):
            raise ValueError(f"got mode {mode!r}; allowed: auto, rounds, plain")
        self.plain: bool | None = None if mode == "auto" else mode == "plain"
        self._lock = threading.Lock()

    def found_rounds(self) -> None:
        """The server answered a round."""
        self.plain = False

    def found_plain(self, base_url: object) -> None:
        """The server has no such route; warns the first time."""
        with self._lock:
            known, self.plain = self.plain, True
        if known is None:
            warnings.warn(
                f"{base_url} knows nothing of rounds: members go as ordinary chat requests without "
                "separators, and nothing is shared",
                PlainServerWarning,
                stacklevel=4,
            )
