"""A tiny OpenAI-compatible server for protocol tests: real HTTP, no model.

It answers with the last message's text as a plain server sees it, so that a round and its fallback must agree.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokendance_sdk.protocol import ROUNDS_PATH, STATUS_PATH, MemberReport
from tokendance_sdk.rounds_protocol import RoundRequest

CHAT_PATH = "/v1/chat/completions"


@dataclass
class FakeServer:
    """What it knows and how it misbehaves; `seen` holds (method, path, headers, body) of every request."""

    knows_rounds: bool = True
    failing: dict[str, int] = field(default_factory=dict)
    failures_left: int = 1_000
    slow: dict[str, float] = field(default_factory=dict)
    break_off_stream: bool = False
    refuse: list[int] = field(default_factory=list)
    """Statuses with which the next rounds are refused as a whole."""
    dies: bool = False
    """Ends the connection without an answer, or in the middle of a stream."""
    delay: float = 0.0
    """Seconds before a whole round's answer."""
    tool: str | None = None
    """A tool that every round's members are asked to call."""
    answer: str | None = None
    """What every member says; by default it repeats what it was told."""
    base_url: str = ""
    seen: list[tuple[str, str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    aborted: threading.Event = field(default_factory=threading.Event)

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.seen]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for _, seen, _, body in self.seen if seen == path]

    def fails(self, agent: str) -> int | None:
        if agent in self.failing and self.failures_left > 0:
            self.failures_left -= 1
            return self.failing[agent]
        return None


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """`fake` on a free port; its `base_url` is set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    fake.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def agent_of(messages: list[dict[str, Any]]) -> str:
    """Plain requests carry no agent id: the first message begins with it in these tests."""
    return str(messages[0]["content"]).split()[0]


def completion(messages: list[dict[str, Any]]) -> dict[str, Any]:
    text = str(messages[-1]["content"])
    size = len(text)
    return {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": f"re: {text}"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": size, "completion_tokens": 2, "total_tokens": size + 2},
    }


def error(status: int) -> dict[str, Any]:
    return {"message": f"refused with {status}", "type": "test_error", "param": None, "code": status}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.fake.seen.append(("GET", self.path, dict(self.headers), {}))
        if self.fake.knows_rounds and self.path == STATUS_PATH:
            self._json(200, {"version": "0", "protocol_version": 1})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.seen.append(("POST", self.path, dict(self.headers), body))
        if self.path == CHAT_PATH:
            self._chat(body)
        elif self.path == ROUNDS_PATH and self.fake.knows_rounds:
            self._round(RoundRequest.model_validate(body))
        else:
            self._json(404, {"detail": "Not Found"})

    def _chat(self, body: dict[str, Any]) -> None:
        agent = agent_of(body["messages"])
        time.sleep(self.fake.slow.get(agent, 0))
        status = self.fake.fails(agent)
        if status is not None:
            self._json(status, {"error": error(status)})
        elif body.get("stream"):
            self._events([(None, chunk) for chunk in _chunks(completion(body["messages"]))])
        else:
            self._json(200, completion(body["messages"]))

    def _round(self, request: RoundRequest) -> None:
        if self.fake.refuse:
            status = self.fake.refuse.pop(0)
            self._json(status, {"error": error(status)})
            return
        if self.fake.dies and not request.stream:
            self.close_connection = True
            return
        time.sleep(self.fake.delay)
        if request.model == "no-such-model":
            self._json(404, {"error": {**error(404), "message": "The model `no-such-model` does not exist."}})
            return
        results: list[dict[str, Any]] = []
        for index, agent in enumerate(request.agents):
            entry: dict[str, Any] = {"agent_id": agent.agent_id, "index": index}
            status = self.fake.fails(agent.agent_id)
            if status is not None:
                entry["error"] = error(status)
            else:
                entry |= completion(request.chat_body(agent, plain=True)["messages"])
                if self.fake.answer is not None:
                    entry["choices"][0]["message"]["content"] = self.fake.answer
                if self.fake.tool is not None:
                    call = {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": self.fake.tool, "arguments": "{}"},
                    }
                    message = {"role": "assistant", "content": None, "tool_calls": [call]}
                    entry["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
                report = MemberReport(
                    round_id=request.round_id,
                    agent_id=agent.agent_id,
                    role="member",
                    prompt_tokens=entry["usage"]["prompt_tokens"],
                    reused_tokens=7,
                    fresh_tokens=entry["usage"]["prompt_tokens"] - 7,
                )
                entry["tokendance"] = report.model_dump(mode="json")
            results.append(entry)
        if request.stream:
            self._events(self._round_events(results))
            return
        errors = [entry["error"]["code"] for entry in results if "error" in entry]
        status = max(errors) if len(errors) == len(results) else 200
        self._json(status, {"round_id": request.round_id, "results": results})

    def _round_events(self, results: list[dict[str, Any]]) -> Iterator[tuple[str | None, dict[str, Any]]]:
        for entry in sorted(results, key=lambda entry: self.fake.slow.get(entry["agent_id"], 0)):
            who = {"agent_id": entry["agent_id"], "index": entry["index"]}
            time.sleep(self.fake.slow.get(entry["agent_id"], 0))
            if "error" in entry:
                yield None, {"error": entry["error"], **who}
                continue
            *first, last = _chunks(entry)
            yield from ((None, {**chunk, **who}) for chunk in first)
            yield None, {**last, "tokendance": entry["tokendance"], **who}
        yield "report", {"round_id": "r", "usage": {}, "tokendance": {}}

    def _json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: Any) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for number, (name, value) in enumerate(events):
                if self.fake.break_off_stream and number == 2:
                    self.wfile.write(b"data: {broken\n\n")
                    return
                if self.fake.dies and number == 2:
                    return
                data = (f"event: {name}\n" if name else "") + f"data: {json.dumps(value)}\n\n"
                self.wfile.write(data.encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.fake.aborted.set()


def _chunks(answer: dict[str, Any]) -> list[dict[str, Any]]:
    text = answer["choices"][0]["message"]["content"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[at : at + 5]} for at in range(0, len(text), 5)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": answer["usage"]})
    return chunks
