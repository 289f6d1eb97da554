"""What a `/v1/rounds` body may not be: each refusal says what was wrong and what is allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.rounds_api import parse_round, with_headers

AGENT = {"agent_id": "ann", "messages": [{"role": "user", "content": [{"type": "block", "ref": "b"}]}]}
ROUND = {"model": "m", "round_id": "r:1", "blocks": {"b": "text"}, "agents": [AGENT]}
SMALL = EngineConfig(max_agents=2, max_blocks=2, max_block_bytes=8)


def body(**fields: Any) -> bytes:
    return json.dumps({**ROUND, **fields}).encode()


def agents(*names: str) -> list[dict[str, Any]]:
    return [{**AGENT, "agent_id": name} for name in names]


def with_content(content: Any) -> list[dict[str, Any]]:
    return [{"agent_id": "ann", "messages": [{"role": "user", "content": content}]}]


def test_a_right_body_is_parsed() -> None:
    request = parse_round(body(temperature=0.5), EngineConfig())
    assert request.defaults == {"temperature": 0.5}
    assert request.chat_body(request.agents[0])["messages"][0]["content"] == "<TTSEP>text<TTSEP>"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "body: not JSON"),
        (b"[1]", "body: got list; allowed: a JSON object"),
        (b"\xff\xfe", "body: not JSON"),
        (body(round_id="r 1"), "round_id: got 'r 1'; allowed: 1 to 128"),
        (body(session_id=""), "session_id: got ''; allowed: 1 to 128"),
        (body(round_id=None), "round_id: got None; allowed"),
        (json.dumps({"model": "m"}).encode(), "round_id: missing"),
        (body(agents=[]), "got 0 agents; allowed: 1 to"),
        (body(agents=agents("ann", "ann")), "agent 'ann' is there twice"),
        (body(agents=agents("a b")), "got 'a b'; allowed: 1 to 128"),
        (body(blocks={}), "unknown block 'b'; known blocks: none"),
        (body(blocks={"x y": "t"}), "got 'x y'; allowed: 1 to 128"),
        (body(blocks={"b": 3}), "blocks.b: got 3; allowed"),
        (body(agents=with_content([{"type": "block", "ref": "zz"}])), "unknown block 'zz'; known blocks: b"),
        (body(agents=with_content([{"type": "text", "text": 3}])), "text: got int '3'; allowed: text"),
        (body(agents=with_content(3)), "content: got int '3'; allowed: text"),
        (body(agents=[{"agent_id": "ann", "messages": "hi"}]), "agents.0.messages: got 'hi'; allowed"),
        (body(agents=[{"agent_id": "ann", "messages": []}]), "agents.0.messages: got"),
        (body(fidelity="best"), "fidelity: got 'best'; allowed"),
        (body(messages=[]), "a round has no field 'messages'"),
    ],
)
def test_what_is_wrong_is_a_400_that_says_so(data: bytes, message: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        parse_round(data, EngineConfig())
    assert caught.value.status == 400
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (body(agents=agents("a", "b", "c")), "agents: got 3; allowed: at most 2 (max_agents)"),
        (body(blocks={"b": "", "c": "", "d": ""}), "blocks: got 3; allowed: at most 2 (max_blocks)"),
        (body(blocks={"b": "ä" * 5}), "block 'b' has 10 bytes; allowed: at most 8 (max_block_bytes)"),
    ],
)
def test_what_exceeds_a_limit_is_a_413_that_says_which(data: bytes, message: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        parse_round(data, SMALL)
    assert caught.value.status == 413
    assert message in str(caught.value)


def test_headers_that_agree_with_the_body_are_welcome() -> None:
    request = parse_round(body(), EngineConfig())
    assert with_headers(request, [(b"x-tokendance-round-id", b"r:1")]) == request
    assert with_headers(request, [(b"accept", b"*/*")]) is request
    assert with_headers(request, [(b"x-tokendance-session-id", b"s")]).tag(request.agents[0]).session == "s"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [(b"x-tokendance-round-id", b"r:2", "'r:2'"), (b"x-tokendance-round-size", b"3", "Round-Size is 3")],
)
def test_headers_that_disagree_with_the_body_are_refused(name: bytes, value: bytes, shown: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        with_headers(parse_round(body(), EngineConfig()), [(name, value)])
    assert caught.value.status == 400
    assert shown in str(caught.value)
