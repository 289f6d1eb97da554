"""Pure ASGI middleware: reads the tag of a request, hands the report back, and adds our routes at start.

vLLM puts it outside its authentication. So it answers nothing itself and looks at no body of its own accord:
everything happens when the application inside first asks for the body, which it does only after the key was
accepted. A refusal is raised there as an `HTTPException`, which vLLM answers; on the way out its body is put
into the shape of vLLM's validation errors, naming the field.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict
from typing import Any, cast

from fastapi import HTTPException
from tokendance_sdk.protocol import BODY_KEY, SEPARATOR, Fidelity, RoundTag
from vllm.logger import init_logger

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.context import CURRENT, RequestState
from tokendance_engine.frontend.reporting import StreamReporter, add_reports
from tokendance_engine.frontend.tagging import (
    automatic_tag,
    check_prompts,
    groups_itself,
    has_tag_header,
    read_tag,
)

logger = init_logger("vllm.tokendance")  # below vLLM's own, so that it is shown as its lines are

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATE_ROUTES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_WORD = b'"' + BODY_KEY.encode() + b'"'
_SPLITS = SEPARATOR.strip("<>").encode()  # brackets may be escaped in JSON


class TokenDanceMiddleware:
    """Named in vLLM's `--middleware` by the plugin; one per API server process."""

    def __init__(self, app: App, config: EngineConfig | None = None) -> None:
        self.app = app
        self.config = config or EngineConfig()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._start(scope["app"])
        elif scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if path in GENERATE_ROUTES:
                await self._serve(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _start(self, app: Any) -> None:
        """Application state is complete here, and no request was served yet."""
        from tokendance_engine.frontend.collect import collect_reports
        from tokendance_engine.frontend.release_api import release_router
        from tokendance_engine.frontend.renderers import config_of
        from tokendance_engine.frontend.rounds_api import rounds_router
        from tokendance_engine.frontend.status_api import status_router

        client = getattr(app.state, "engine_client", None)
        if client is None:
            return
        self.config = config_of(client.vllm_config)
        logger.info("TokenDance is on: %s", asdict(self.config))
        collect_reports(client)
        app.include_router(rounds_router(self.config))
        app.include_router(status_router(self.config))
        app.include_router(release_router())

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = RequestState()
        scope["headers"] = list(scope["headers"])
        body = _Body(scope, receive, state, self.config)
        token = CURRENT.set(state)
        try:
            await self.app(scope, body.receive, _Answer(state, send).send)
        finally:
            CURRENT.reset(token)


class _Body:
    """The request's body, read whole when first asked for, and passed on without our field."""

    def __init__(self, scope: Scope, receive: Receive, state: RequestState, config: EngineConfig) -> None:
        self._scope = scope
        self._receive = receive
        self._state = state
        self._config = config
        self._done = False

    async def receive(self) -> Message:
        if self._done:
            return await self._receive()
        self._done = True
        try:
            return await self._read()
        except RequestRejectedError as error:
            self._state.refusal = error
            raise HTTPException(error.status, detail=str(error)) from None

    async def _read(self) -> Message:
        headers = self._scope["headers"]
        tagged = has_tag_header(headers)
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if tagged:
                self._check_size(len(body))
        content = bytes(body)
        splits = self._config.auto_group != "off" and _SPLITS in content
        if tagged or splits or _WORD in content:
            content = self._take_tag(content)
        return {"type": "http.request", "body": content, "more_body": False}

    def _take_tag(self, content: bytes) -> bytes:
        """Set the request's tag; returns the body that vLLM is to see."""
        headers = self._scope["headers"]
        try:
            parsed = json.loads(content)
        except ValueError:  # vLLM's own answer says what is wrong with it
            parsed = None
        body = parsed if isinstance(parsed, dict) else {}
        fidelity = self._config.auto_group
        if fidelity != "off" and groups_itself(headers, body):
            self._state.automatic = True
            tag: RoundTag | None = automatic_tag(body.get(BODY_KEY), cast(Fidelity, fidelity))
        else:
            tag = read_tag(headers, body.get(BODY_KEY))
        if tag is not None:
            self._check_size(len(content))
            check_prompts(body, tag, self._config.max_segments)
            # Beam search sends every beam as a request of its own, which no round can count.
            self._state.tag = None if body.get("use_beam_search") else tag
        if BODY_KEY not in body:
            return content
        del body[BODY_KEY]
        content = json.dumps(body).encode()
        headers[:] = _with_length(self._scope, len(content))["headers"]
        return content

    def _check_size(self, size: int) -> None:
        if size > self._config.max_body_bytes:
            raise RequestRejectedError(
                f"body: got {size} bytes or more; allowed: at most {self._config.max_body_bytes} "
                "(max_body_bytes)",
                status=413,
            )


class _Answer:
    """The response on its way out: of a tagged request, the report is added."""

    def __init__(self, state: RequestState, send: Send) -> None:
        self._state = state
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()
        self._stream: StreamReporter | None = None

    async def send(self, message: Message) -> None:
        if self._state.refusal is not None:
            await self._refuse(message, self._state.refusal)
        elif self._state.tag is None:
            await self._send(message)
        elif message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body" and self._stream is not None:
            more = message.get("more_body", False)
            data = self._stream.feed(message.get("body", b""), more)
            if data or not more:
                await self._send({**message, "body": data})
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)
        else:
            await self._send(message)

    async def _begin(self, message: Message) -> None:
        kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
        if kind.startswith(b"text/event-stream"):
            self._stream = StreamReporter(self._state.reports)
            await self._send(message)
        elif message["status"] == 200 and kind.startswith(b"application/json"):
            self._start = message
        else:
            await self._send(message)

    async def _refuse(self, message: Message, refusal: RequestRejectedError) -> None:
        body = json.dumps(refusal.to_openai()).encode()
        if message["type"] == "http.response.start":
            await self._send(_with_length(message, len(body)))
        elif not message.get("more_body", False):
            await self._send({**message, "body": body})

    async def _finish(self, start: Message) -> None:
        body = bytes(self._body)
        if self._state.reports:
            payload = json.loads(body)
            add_reports(payload, list(self._state.reports.values()))
            body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "surrogatepass"
            )
            start = _with_length(start, len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _with_length(message: Message, length: int) -> Message:
    """A response start (or a scope) with its content-length, if it has one, set to `length` bytes."""
    headers = [
        (name, str(length).encode() if name.lower() == b"content-length" else value)
        for name, value in message["headers"]
    ]
    return {**message, "headers": headers}
