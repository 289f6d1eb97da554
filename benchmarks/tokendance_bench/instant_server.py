"""An OpenAI-compatible server without a model, in a process of its own: what is left is the client's own work."""

from __future__ import annotations

import json
import multiprocessing
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

WORDS = 60
"""Words of every answer."""


def answer(who: str, turn: int) -> str:
    """What an agent says in its so-manieth answer: nobody else says it, and it is about 750 letters long."""
    return " ".join(f"{who}.{turn}.{word}" for word in range(WORDS))


def choices(who: str, turn: int) -> list[dict[str, Any]]:
    """The same as an answer's `choices`."""
    message = {"role": "assistant", "content": answer(who, turn)}
    return [{"index": 0, "message": message, "finish_reason": "stop"}]


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: dict[str, Any]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(self.seen if self.path == "/seen" else {"version": "0", "protocol_version": 1})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen = self.seen
        seen["requests"] += 1
        headers = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
        seen["header_bytes"] = max(seen["header_bytes"], headers)
        if not self.path.endswith("/rounds"):
            self._json(
                {"id": "c", "model": "m", "choices": choices("agent", seen["requests"]), "usage": USAGE}
            )
            return
        seen["turn"] += 1
        results = [
            {
                "agent_id": agent["agent_id"],
                "index": n,
                "choices": choices(agent["agent_id"], seen["turn"]),
                "usage": USAGE,
            }
            for n, agent in enumerate(body["agents"])
        ]
        self._json({"round_id": body["round_id"], "results": results})

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _serve(ready: Connection) -> None:
    seen = {"requests": 0, "turn": 0, "header_bytes": 0}
    handler = type("Handler", (_Handler,), {"seen": seen})
    server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": socket.SOMAXCONN})(
        ("127.0.0.1", 0), handler
    )
    server.daemon_threads = True
    ready.send(server.server_port)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


@contextmanager
def instant_server() -> Iterator[str]:
    """The server's `/v1` URL; it is gone when the block is left."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def seen(base_url: str) -> dict[str, Any]:
    """How many requests there were, and the most bytes that the headers of one had."""
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/seen") as response:
        found: dict[str, Any] = json.load(response)
        return found
