"""`POST /v1/rounds`: one request for a whole round, plain or streaming."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from tokendance_sdk.protocol import ROUNDS_PATH
from tokendance_sdk.rounds_protocol import RoundRequest

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.rounds_run import Round
from tokendance_engine.frontend.tagging import has_tag_header, read_tag


def rounds_router(config: EngineConfig) -> APIRouter:
    """The route; vLLM's authentication covers it, since its path begins with `/v1`."""
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation

    router = APIRouter()

    @with_cancellation  # type: ignore[untyped-decorator]
    async def answer(request: RoundRequest, raw_request: Request) -> Response:
        running = Round(request, raw_request, config)
        if not request.stream:
            status, content = await running.result()
            return JSONResponse(content, status_code=status)
        failed = await running.start()
        if failed is not None:
            return JSONResponse(failed[1], status_code=failed[0])
        return StreamingResponse(_events(running), media_type="text/event-stream")

    @router.post(ROUNDS_PATH)
    async def rounds(raw_request: Request) -> Response:
        if getattr(raw_request.app.state, "openai_serving_chat", None) is None:
            raise HTTPException(501, detail="The model does not support Chat Completions API")
        try:
            request = parse_round(await _body(raw_request, config.max_body_bytes), config)
            request = with_headers(request, raw_request.scope["headers"])
        except RequestRejectedError as error:
            return JSONResponse(error.to_openai(), status_code=error.status)
        response: Response = await answer(request, raw_request)
        return response

    return router


def parse_round(body: bytes, config: EngineConfig) -> RoundRequest:
    """Check and parse the body of a round.

    Raises:
        RequestRejectedError: 400 for what is wrong, 413 for what exceeds a limit.
    """
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise RequestRejectedError(f"body: not JSON ({error}); allowed: a JSON object") from None
    if not isinstance(parsed, dict):
        raise RequestRejectedError(f"body: got {type(parsed).__name__}; allowed: a JSON object")
    for name, limit, kind in (("agents", config.max_agents, list), ("blocks", config.max_blocks, dict)):
        if isinstance(parsed.get(name), kind) and len(parsed[name]) > limit:
            raise RequestRejectedError(
                f"{name}: got {len(parsed[name])}; allowed: at most {limit} (max_{name})", status=413
            )
    try:
        request = RoundRequest.model_validate(parsed)
    except ValidationError as error:
        raise RequestRejectedError(_first_problem(error)) from None
    exceeded = request.exceeded(config.limits())
    if exceeded:
        raise RequestRejectedError(exceeded, status=413)
    return request


def with_headers(request: RoundRequest, headers: list[tuple[bytes, bytes]]) -> RoundRequest:
    """The headers of an ordinary tagged request may come along, as long as they agree with the body.

    A session named only by the header counts; an agent header means nothing here.

    Raises:
        RequestRejectedError: 400; names both values.
    """
    if not has_tag_header(headers):
        return request
    session = {} if request.session_id is None else {"session_id": request.session_id}
    tag = read_tag(headers, {"round_id": request.round_id, "round_size": len(request.agents), **session})
    return request if tag is None else request.model_copy(update={"session_id": tag.session_id})


async def _body(raw_request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in raw_request.stream():
        body += piece
        if len(body) > limit:
            raise RequestRejectedError(
                f"body: got {len(body)} bytes or more; allowed: at most {limit} (max_body_bytes)", status=413
            )
    return bytes(body)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "body"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{where}: {message}"
    if first["type"] == "missing":
        return f"{where}: missing; it is required"
    return f"{where}: got {repr(first['input'])[:140]}; allowed: {message}"


async def _events(running: Round) -> AsyncIterator[str]:
    async for event, value in running.stream():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield (f"event: {event}\n" if event else "") + f"data: {text}\n\n"
    yield "data: [DONE]\n\n"
