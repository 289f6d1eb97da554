"""An OpenAI-compatible server that follows a script: real HTTP, no model, every failure that a round can meet."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokendance_sdk.protocol import ROUNDS_PATH, STATUS_PATH, MemberReport
from tokendance_sdk.rounds_protocol import RoundAgent, RoundRequest

CHAT_PATH = "/v1/chat/completions"


def echo(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    """The default script: say the last message's text again, after `re: `."""
    return {"content": f"re: {messages[-1]['content']}"}


@dataclass
class Scripted:
    """What the server does.

    Attributes:
        script: (plain messages, chat body) -> the assistant's message; may raise.
        refusals: statuses for the next requests as a whole, used up one by one.
        failing: agent -> (status, how often).
        slow: agent -> seconds before it answers.
        cut: how a stream ends after `cut_after` chunks: `garbage`, or `close` the connection; `kill`: no answer at all.
        seen: (path, headers, body) of every request; answered: (round id, agent) of every answer that went out whole.
    """

    script: Callable[[list[dict[str, Any]], dict[str, Any]], dict[str, Any]] = echo
    knows_rounds: bool = True
    refusals: list[int] = field(default_factory=list)
    failing: dict[str, tuple[int, int]] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    cut: str | None = None
    cut_after: int = 0
    base_url: str = ""
    seen: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    answered: list[tuple[str, str]] = field(default_factory=list)
    aborted: threading.Event = field(default_factory=threading.Event)

    def rounds(self) -> list[tuple[str, list[str]]]:
        """(round id, agents) of every round sent."""
        return [
            (body["round_id"], [agent["agent_id"] for agent in body["agents"]])
            for path, _, body in self.seen
            if path == ROUNDS_PATH
        ]

    def requests(self) -> list[RoundRequest]:
        return [RoundRequest.model_validate(body) for path, _, body in self.seen if path == ROUNDS_PATH]

    def prompt(self, number: int, agent: str) -> list[dict[str, Any]]:
        """The agent's chat messages in the given round, blocks inlined between separators."""
        request = self.requests()[number]
        (member,) = [each for each in request.agents if each.agent_id == agent]
        messages: list[dict[str, Any]] = request.chat_body(member)["messages"]
        return messages


@contextmanager
def serving(scripted: Scripted) -> Iterator[Scripted]:
    """`scripted` on a free port; its `base_url` is set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"scripted": scripted}))
    server.request_queue_size = 128
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    scripted.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _GoneError(Exception):
    """The client hung up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: Scripted

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        known = self.scripted.knows_rounds and self.path == STATUS_PATH
        self._json(200 if known else 404, {"protocol_version": 1} if known else {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.scripted.seen.append((self.path, dict(self.headers), body))
        try:
            if self.scripted.refusals:
                status = self.scripted.refusals.pop(0)
                self._json(status, {"error": _error(status)})
            elif self.scripted.cut == "kill":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif self.path == CHAT_PATH:
                self._chat(body)
            elif self.path == ROUNDS_PATH and self.scripted.knows_rounds:
                self._round(RoundRequest.model_validate(body))
            else:
                self._json(404, {"detail": "Not Found"})
        except (_GoneError, BrokenPipeError, ConnectionResetError):
            self.scripted.aborted.set()
            self.close_connection = True

    def _chat(self, body: dict[str, Any]) -> None:
        agent = str(body["messages"][0]["content"]).split()[0]
        entry = self._answer(agent, body["messages"], body)
        if "error" in entry:
            self._json(entry["error"]["code"], entry)
        elif body.get("stream"):
            self._events(iter(_chunks(entry)))
        else:
            self._json(200, entry)

    def _round(self, request: RoundRequest) -> None:
        if request.stream:
            self._events(self._pieces(request))
            return
        results = [self._member(request, index, agent) for index, agent in enumerate(request.agents)]
        errors = [entry["error"]["code"] for entry in results if "error" in entry]
        self._json(
            max(errors) if len(errors) == len(results) else 200,
            {"round_id": request.round_id, "results": results},
        )
        self._note(request, results)

    def _member(self, request: RoundRequest, index: int, agent: RoundAgent) -> dict[str, Any]:
        body = request.chat_body(agent, plain=True)
        entry = {
            "agent_id": agent.agent_id,
            "index": index,
            **self._answer(agent.agent_id, body["messages"], body),
        }
        if "error" not in entry:
            size = entry["usage"]["prompt_tokens"]
            report = MemberReport(
                round_id=request.round_id, agent_id=agent.agent_id, prompt_tokens=size, reused_tokens=7
            )
            entry["tokendance"] = report.model_dump(mode="json")
        return entry

    def _answer(self, agent: str, messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        self._wait(self.scripted.slow.get(agent, 0))
        status, left = self.scripted.failing.get(agent, (0, 0))
        if left:
            self.scripted.failing[agent] = (status, left - 1)
            return {"error": _error(status)}
        message = {"role": "assistant", "content": None, **self.scripted.script(messages, body)}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        size = sum(len(str(each["content"])) for each in messages)
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": size, "completion_tokens": 2, "total_tokens": size + 2},
        }

    def _pieces(self, request: RoundRequest) -> Iterator[dict[str, Any]]:
        slow = self.scripted.slow
        order = sorted(enumerate(request.agents), key=lambda pair: slow.get(pair[1].agent_id, 0))
        for index, agent in order:
            entry = self._member(request, index, agent)
            who = {"agent_id": agent.agent_id, "index": index}
            if "error" in entry:
                yield {"error": entry["error"], **who}
                continue
            *first, last = _chunks(entry)
            yield from ({**chunk, **who} for chunk in first)
            yield {**last, "tokendance": entry["tokendance"], **who}
            self._note(request, [entry])

    def _note(self, request: RoundRequest, results: list[dict[str, Any]]) -> None:
        self.scripted.answered += [
            (request.round_id, entry["agent_id"]) for entry in results if "error" not in entry
        ]

    def _wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise _GoneError

    def _json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, value in enumerate(events):
            if self.scripted.cut and number == self.scripted.cut_after:
                if self.scripted.cut == "garbage":
                    self.wfile.write(b"data: {broken\n\n")
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.write(b'event: report\ndata: {"round_id": "r"}\n\ndata: [DONE]\n\n')


def _error(status: int) -> dict[str, Any]:
    return {"message": f"refused with {status}", "type": "test_error", "param": None, "code": status}


def _chunks(entry: dict[str, Any]) -> list[dict[str, Any]]:
    message = entry["choices"][0]["message"]
    text = message["content"] or ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[at : at + 9]} for at in range(0, len(text), 9)]
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]})
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = entry["choices"][0]["finish_reason"]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return [*chunks, {"choices": [], "usage": entry["usage"]}]
