"""The middleware around a real FastAPI application with vLLM's own authentication and error handlers."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.testclient import TestClient

pytest.importorskip("vllm")

from tokendance_engine.config import EngineConfig
from tokendance_engine.frontend.context import CURRENT
from tokendance_engine.frontend.middleware import TokenDanceMiddleware
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

REPORT = {"round_id": "r:1", "agent_id": "a", "fresh_tokens": 10, "recomputed_tokens": 5}
CHAT = {"messages": [{"role": "user", "content": "a<TTSEP>b"}]}
ROUND = {"X-TokenDance-Round-Id": "r:1"}


def make_app(api_key: str | None = None, config: EngineConfig | None = None) -> tuple[TestClient, list[Any]]:
    """A client, and the (tag, body) of every request that reached a route."""
    app = FastAPI()
    app.state.args = Namespace(log_error_stack=False)
    init_exception_handler(app)
    seen: list[Any] = []

    async def generate(body: dict[str, Any], raw_request: Request) -> Response:
        state = CURRENT.get()
        seen.append((state.tag if state else None, body))
        if int(raw_request.headers["content-length"]) != len(await raw_request.body()):
            return JSONResponse({"error": "content-length"}, 500)
        if body.get("stream"):
            return StreamingResponse(stream(state), media_type="text/event-stream")
        if state is not None and state.tag is not None and not body.get("no_report"):
            state.reports["id"] = REPORT
        return JSONResponse({"usage": {"prompt_tokens": 40}, "text": "ok"})

    async def stream(state: Any) -> AsyncIterator[str]:
        yield 'data: {"n": 1}\n\n'
        if state is not None and state.tag is not None:
            state.reports["id"] = REPORT
        yield 'data: {"n": 2}\n\n'
        yield "data: [DONE]\n\n"

    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"):
        app.post(path)(generate)
    if api_key:
        app.add_middleware(AuthenticationMiddleware, tokens=[api_key])
    app.add_middleware(TokenDanceMiddleware, config=config or EngineConfig())
    return TestClient(app, raise_server_exceptions=False), seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_header_tags_the_request_and_the_report_comes_back(path: str) -> None:
    client, seen = make_app()
    answer = client.post(path, json=CHAT, headers=ROUND)
    assert answer.status_code == 200
    assert answer.json()["tokendance"] == REPORT
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 25
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert seen[0][0].round_id == "r:1"
    assert seen[0][1] == CHAT


def test_the_bodys_tag_is_taken_out_before_vllm_sees_it() -> None:
    client, seen = make_app()
    answer = client.post("/v1/chat/completions", json={**CHAT, "tokendance": {"round_id": "r:2"}})
    assert answer.status_code == 200
    assert seen[0][0].round_id == "r:2"
    assert seen[0][1] == CHAT


def test_without_a_tag_nothing_changes() -> None:
    client, seen = make_app()
    body = {"messages": [{"role": "user", "content": 'say "tokendance" <TTSEP>'}]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.json() == {"usage": {"prompt_tokens": 40}, "text": "ok"}
    assert seen == [(None, body)]


def test_other_routes_see_no_tag() -> None:
    client, seen = make_app()
    assert client.post("/v1/embeddings", json=CHAT, headers=ROUND).status_code == 200
    assert seen == [(None, CHAT)]


@pytest.mark.parametrize(
    ("headers", "body", "param", "parts"),
    [
        ({"X-TokenDance-Round-Id": "r 1"}, CHAT, "X-TokenDance-Round-Id", ["'r 1'", "1 to 128 characters"]),
        ({**ROUND, "X-TokenDance-Round-Size": "0"}, CHAT, "X-TokenDance-Round-Size", ["0", "from 1 to 4096"]),
        (
            {**ROUND, "X-TokenDance-Round-Size": "5000"},
            CHAT,
            "X-TokenDance-Round-Size",
            ["5000", "1 to 4096"],
        ),
        (ROUND, {**CHAT, "tokendance": {"round_id": "r:2"}}, "tokendance.round_id", ["'r:1'", "'r:2'"]),
        ({}, {**CHAT, "tokendance": "r:1"}, "tokendance", ["'r:1'", "an object"]),
        ({}, {**CHAT, "tokendance": {"round_id": "r", "x": 1}}, "tokendance.x", ["unknown key", "agent_id"]),
        (ROUND, {**CHAT, "tokendance": {"segments": [1]}}, "tokendance.segments", ["[1]", "token ids"]),
        (
            {},
            {"prompt": [1, 2], "tokendance": {"round_id": "r", "segments": [3]}},
            "tokendance.segments",
            ["got 3"],
        ),
    ],
)
def test_a_wrong_tag_is_a_400_in_openais_shape(
    headers: dict[str, str], body: dict[str, Any], param: str, parts: list[str]
) -> None:
    client, seen = make_app()
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (
        400,
        400,
        "BadRequestError",
        param,
    )
    for part in parts:
        assert part in error["message"]
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert seen == []


def test_a_refusal_has_no_effect_on_the_next_request() -> None:
    client, _ = make_app()
    assert (
        client.post("/v1/completions", json=CHAT, headers={"X-TokenDance-Agent-Id": "a"}).status_code == 400
    )
    assert client.post("/v1/completions", json=CHAT).json() == {"usage": {"prompt_tokens": 40}, "text": "ok"}
    assert CURRENT.get() is None


@pytest.mark.parametrize("headers", [{}, ROUND, {"X-TokenDance-Round-Id": "r 1"}])
def test_without_a_key_the_answer_is_401_whatever_the_tag_says(headers: dict[str, str]) -> None:
    client, seen = make_app(api_key="secret")
    answer = client.post("/v1/chat/completions", json={**CHAT, "tokendance": 3}, headers=headers)
    assert answer.status_code == 401
    assert answer.json() == {"error": "Unauthorized"}
    assert seen == []


def test_with_the_key_a_wrong_tag_is_a_400_and_a_right_one_is_served() -> None:
    client, _ = make_app(api_key="secret")
    key = {"Authorization": "Bearer secret"}
    wrong = client.post("/v1/chat/completions", json=CHAT, headers={**key, "X-TokenDance-Round-Id": "r 1"})
    assert wrong.status_code == 400
    assert (
        client.post("/v1/chat/completions", json=CHAT, headers={**key, **ROUND}).json()["tokendance"]
        == REPORT
    )


def test_the_body_is_not_read_before_the_key_was_accepted() -> None:
    client, _ = make_app(api_key="secret", config=EngineConfig(max_body_bytes=10))
    assert client.post("/v1/chat/completions", json=CHAT, headers=ROUND).status_code == 401


def test_ten_megabytes_of_separators_are_refused_fast() -> None:
    client, _ = make_app()
    body = {"prompt": "<TTSEP>" * 1_500_000}
    started = time.monotonic()
    answer = client.post("/v1/completions", json=body, headers=ROUND)
    assert answer.status_code == 413
    assert "got 1500001 segments; allowed: at most 4096" in answer.json()["error"]["message"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("headers", [ROUND, {}])
def test_a_tagged_body_over_the_limit_is_a_413(headers: dict[str, str]) -> None:
    client, _ = make_app(config=EngineConfig(max_body_bytes=200))
    body = {"prompt": "x" * 300, "tokendance": {"round_id": "r:1"}}
    answer = client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 413
    assert "allowed: at most 200 (max_body_bytes)" in answer.json()["error"]["message"]


def test_an_untagged_body_has_no_limit_of_ours() -> None:
    client, _ = make_app(config=EngineConfig(max_body_bytes=200))
    assert client.post("/v1/completions", json={"prompt": "x" * 300}).status_code == 200


def test_malformed_json_gets_vllms_own_answer() -> None:
    client, _ = make_app()
    tagged = client.post(
        "/v1/completions", content=b'{"prompt": ', headers={**ROUND, "content-type": "application/json"}
    )
    plain = client.post(
        "/v1/completions", content=b'{"prompt": ', headers={"content-type": "application/json"}
    )
    assert (tagged.status_code, tagged.json()) == (plain.status_code, plain.json())
    assert tagged.status_code == 400


def test_a_stream_ends_with_the_report_in_its_last_chunk() -> None:
    client, _ = make_app()
    answer = client.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=ROUND)
    lines = [line[6:] for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    assert [json.loads(line) for line in lines[:-1]] == [{"n": 1}, {"n": 2, "tokendance": REPORT}]


def test_a_tagged_answer_without_a_report_is_passed_on_as_it_is() -> None:
    client, _ = make_app()
    answer = client.post("/v1/completions", json={**CHAT, "no_report": True}, headers=ROUND)
    assert answer.json() == {"usage": {"prompt_tokens": 40}, "text": "ok"}


def test_beam_search_is_served_without_a_tag() -> None:
    client, seen = make_app()
    answer = client.post("/v1/completions", json={**CHAT, "use_beam_search": True}, headers=ROUND)
    assert answer.status_code == 200
    assert seen[0][0] is None


AUTO = EngineConfig(auto_group="balanced")


@pytest.mark.parametrize(
    ("given", "fidelity"), [(None, "balanced"), ({"fidelity": "fast", "agent_id": "ann"}, "fast")]
)
def test_with_auto_groups_separators_alone_tag_a_request(given: Any, fidelity: str) -> None:
    client, seen = make_app(config=AUTO)
    answer = client.post("/v1/chat/completions", json={**CHAT, **({"tokendance": given} if given else {})})
    assert answer.json()["tokendance"] == REPORT
    tag, body = seen[0]
    assert (tag.fidelity, tag.agent_id) == (fidelity, (given or {}).get("agent_id"))
    assert body == CHAT


def test_separators_are_seen_however_json_spells_them() -> None:
    client, seen = make_app(config=AUTO)
    content = json.dumps(CHAT).replace("<TTSEP>", "\\u003cTTSEP\\u003e")
    assert "<" not in content
    client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert seen[0][0] is not None


@pytest.mark.parametrize(
    "body", [{"messages": [{"role": "user", "content": "the word TTSEP"}]}, {"prompt": [1, 2]}]
)
def test_with_auto_groups_other_requests_stay_untouched(body: Any) -> None:
    client, seen = make_app(config=AUTO)
    client.post("/v1/chat/completions", json=body)
    assert seen == [(None, body)]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"session_id": "s"}, "tokendance.round_id"),
        ({"round_size": 3}, "tokendance.round_id"),
        ({"fidelity": "best"}, "tokendance.fidelity"),
        ({"x": 1}, "tokendance.x"),
        ("balanced", "tokendance"),
    ],
)
def test_with_auto_groups_half_a_tag_is_still_refused(given: Any, param: str) -> None:
    client, seen = make_app(config=AUTO)
    answer = client.post("/v1/chat/completions", json={**CHAT, "tokendance": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert seen == []


def test_a_round_that_is_named_is_not_grouped_by_content() -> None:
    client, seen = make_app(config=AUTO)
    client.post("/v1/chat/completions", json=CHAT, headers=ROUND)
    assert seen[0][0].round_id == "r:1"
