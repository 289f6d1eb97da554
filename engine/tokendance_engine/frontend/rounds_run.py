"""Run the members of a `/v1/rounds` request through vLLM's own chat handler, together."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from tokendance_sdk.protocol import BODY_KEY, MemberReport, RoundTag
from tokendance_sdk.rounds_protocol import RoundAgent, RoundRequest, RoundTotals

from tokendance_engine.config import EngineConfig
from tokendance_engine.frontend.context import CURRENT, RequestState
from tokendance_engine.frontend.muster import Muster
from tokendance_engine.frontend.reporting import add_reports, correct_usage

Failure = tuple[int, dict[str, Any]]
"""(HTTP status, JSON content)."""


class Round:
    """One round being served: call `result`, or `start` and then `stream`, once.

    Cancelling either aborts every member in the engine.
    """

    def __init__(self, request: RoundRequest, raw_request: Request, config: EngineConfig) -> None:
        self.request = request
        muster = Muster(len(request.agents))
        self.members = [
            Member(request, agent, index, raw_request, config, muster)
            for index, agent in enumerate(request.agents)
        ]

    async def result(self) -> Failure:
        """Status and body of the plain answer: 200 unless every member failed."""
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(member.answer())
        results = [member.result() for member in self.members]
        body = {"round_id": self.request.round_id, "results": results, **self._totals()}
        return self._status(), body

    async def start(self) -> Failure | None:
        """Render and check every member: None to go on with `stream`, or the answer if all failed."""
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(member.open())
        if any(member.error is None for member in self.members):
            return None
        results = [member.result() for member in self.members]
        return self._status(), {"round_id": self.request.round_id, "results": results, **self._totals()}

    async def stream(self) -> AsyncIterator[tuple[str | None, dict[str, Any]]]:
        """(event name or None, JSON value): chunks of all members as they come, then one `report`."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        async def pump(member: Member) -> None:
            try:
                async for chunk in member.chunks():
                    queue.put_nowait({**chunk, "agent_id": member.agent.agent_id, "index": member.index})
            finally:
                queue.put_nowait(None)

        tasks = [asyncio.create_task(pump(member)) for member in self.members]
        try:
            running = len(tasks)
            while running:
                value = await queue.get()
                if value is None:
                    running -= 1
                else:
                    yield None, value
            yield "report", {"round_id": self.request.round_id, **self._totals()}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _status(self) -> int:
        codes = [int(member.error.get("code") or 500) for member in self.members if member.error is not None]
        if len(codes) < len(self.members):
            return 200
        return codes[0] if len(set(codes)) == 1 else max(codes)

    def _totals(self) -> dict[str, Any]:
        usages = [member.usage for member in self.members if member.usage]
        usage: dict[str, Any] = {
            name: sum(each.get(name) or 0 for each in usages)
            for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }
        reports = [MemberReport.model_validate(each.report) for each in self.members if each.report]
        if reports:
            correct_usage(usage, [each.model_dump() for each in reports])
        failed = sum(member.error is not None for member in self.members)
        totals = RoundTotals.of(self.request.round_id, reports, agents=len(self.members), failed=failed)
        return {"usage": usage, BODY_KEY: totals.model_dump()}


class Member:
    """One agent's chat request inside a round."""

    def __init__(
        self,
        request: RoundRequest,
        agent: RoundAgent,
        index: int,
        raw_request: Request,
        config: EngineConfig,
        muster: Muster,
    ) -> None:
        self.agent = agent
        self.index = index
        self.error: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self.choices: list[dict[str, Any]] | None = None
        self._request = request
        self._raw = _own_request(raw_request, index)
        self._handler = raw_request.app.state.openai_serving_chat
        self._muster = muster
        self._chunks: Any = None
        self.state = RequestState(tag=_tag(request, agent, config), muster=muster, index=index)

    @property
    def report(self) -> dict[str, Any] | None:
        """The member's report, once it finished."""
        return next(iter(self.state.reports.values()), None)

    async def answer(self) -> None:
        """Run to the end; sets `choices` and `usage`, or `error`. Own task: sets the context variable."""
        response = await self._call(stream=False)
        if response is not None:
            content = response.model_dump()
            self.choices, self.usage = content["choices"], content.get("usage")
            if self.report and self.usage:
                correct_usage(self.usage, [self.report])

    async def open(self) -> None:
        """Render and check; `chunks` then runs the member."""
        self._chunks = await self._call(stream=True)

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """OpenAI chunks, the last one with the member's report; or one `{"error": ...}`."""
        if self.error is not None:
            yield {"error": self.error}
            return
        CURRENT.set(self.state)
        last: dict[str, Any] | None = None
        try:
            async with contextlib.aclosing(self._chunks) as lines:
                async for line in lines:
                    chunk = _chunk(line)
                    if chunk is None:
                        continue
                    if "error" in chunk:
                        self.error = chunk["error"]
                    self.usage = chunk.get("usage") or self.usage
                    if last is not None:
                        yield last
                    last = None
                    if self.report is None:
                        yield chunk
                    else:
                        last = chunk
        finally:
            self._muster.drop(self.index)
        if last is not None:
            if "error" not in last and self.report:
                add_reports(last, [self.report])
            yield last

    def result(self) -> dict[str, Any]:
        """The member's entry of `results`."""
        entry: dict[str, Any] = {"agent_id": self.agent.agent_id, "index": self.index}
        if self.error is not None:
            entry["error"] = self.error
        else:
            entry |= {"choices": self.choices, "usage": self.usage}
        if self.report:
            entry[BODY_KEY] = self.report
        return entry

    async def _call(self, *, stream: bool) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

        CURRENT.set(self.state)
        waits = False
        try:
            body = {**self._request.chat_body(self.agent), "stream": stream}
            if body.get("use_beam_search"):
                raise ValueError("use_beam_search: got True; allowed: False in a round")
            if not stream:
                body.pop("stream_options", None)
            response = await self._handler.create_chat_completion(
                ChatCompletionRequest.model_validate(body), self._raw
            )
            if isinstance(response, ErrorResponse):
                self.error = response.error.model_dump()
                return None
            waits = stream
            return response
        except (ValidationError, RequestValidationError) as error:
            message = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            self.error = create_error_response(message).error.model_dump()
        except Exception as error:
            self.error = create_error_response(error).error.model_dump()
        finally:
            if not waits:
                self._muster.drop(self.index)
        return None


def _tag(request: RoundRequest, agent: RoundAgent, config: EngineConfig) -> RoundTag:
    tag = request.tag(agent)
    if agent.fidelity is None and "fidelity" not in request.model_fields_set:
        return tag.model_copy(update={"fidelity": config.default_fidelity})
    return tag


def _own_request(raw_request: Request, index: int) -> Request:
    """The HTTP request as one member sees it: its own state, and its own id where the client gave one."""
    headers = [
        (name, value + b"-" + str(index).encode() if name.lower() == b"x-request-id" else value)
        for name, value in raw_request.scope["headers"]
    ]
    return Request({**raw_request.scope, "headers": headers, "state": {}})


def _chunk(line: str) -> dict[str, Any] | None:
    """The JSON object of one server-sent event of vLLM; None for `[DONE]` and comments."""
    value = line.strip().removeprefix("data:").strip()
    if not line.startswith("data:") or value == "[DONE]":
        return None
    return dict(json.loads(value))
