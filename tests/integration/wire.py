"""Requests and readers that the tests of the HTTP front end share."""

from __future__ import annotations

import json
import re
from typing import Any

from vllm_server import SERVED_NAME, Server

SHARED = "Isabella: I am planning a Valentine's party at Hobbs Cafe on the fourteenth at five. " * 8


def agent(name: str, **fields: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": f"You are {name}."},
        {"type": "block", "ref": "o:isabella"},
        {"type": "text", "text": "What do you say?"},
    ]
    return {"agent_id": name, "messages": [{"role": "user", "content": content}], **fields}


def round_body(agents: list[dict[str, Any]], round_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "round_id": round_id,
        "blocks": {"o:isabella": SHARED},
        "agents": agents,
        "max_tokens": 6,
        "temperature": 0,
        **fields,
    }


def token_ids(server: Server, text: str) -> list[int]:
    body = {"model": SERVED_NAME, "prompt": text, "add_special_tokens": False}
    return list(server.request("/tokenize", body).body["tokens"])


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for event in filter(None, text.split("\n\n")):
        name = re.search(r"^event: (.*)$", event, re.M)
        data = re.search(r"^data: (.*)$", event, re.M)
        if data:
            value = data[1] if data[1] == "[DONE]" else json.loads(data[1])
            found.append((name[1] if name else "", value))
    return found
