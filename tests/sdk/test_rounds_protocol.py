"""The request model: what it collects, what it refuses and how it says so."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tokendance_sdk.protocol import SEPARATOR, Limits, MemberReport
from tokendance_sdk.rounds_protocol import RoundRequest, RoundResponse, RoundTotals


def member(agent: str = "maria", content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"agent_id": agent, "messages": [{"role": "user", "content": content}], **more}


def request(*agents: dict[str, Any], **more: Any) -> RoundRequest:
    return RoundRequest.model_validate(
        {"model": "m", "round_id": "s:1", "agents": agents or [member()], **more}
    )


def test_unknown_fields_are_defaults_and_an_agents_own_fields_override_them() -> None:
    parsed = request(member("a"), member("b", max_tokens=5, tools=[]), temperature=0.5, max_tokens=9)
    assert parsed.defaults == {"temperature": 0.5, "max_tokens": 9}
    bodies = [parsed.chat_body(agent) for agent in parsed.agents]
    assert [(body["max_tokens"], body["temperature"]) for body in bodies] == [(9, 0.5), (5, 0.5)]
    assert "tools" not in bodies[0]
    assert bodies[1]["tools"] == []
    assert all("stream" not in body and "fidelity" not in body for body in bodies)


def test_fidelity_backend_and_options_are_the_agents_where_it_has_its_own() -> None:
    parsed = request(
        member("judge", fidelity="exact", options={"ratio": 1}), member("b"), fidelity="fast", backend="epic"
    )
    tags = [parsed.tag(agent, 2) for agent in parsed.agents]
    assert [(tag.fidelity, tag.backend, tag.options) for tag in tags] == [
        ("exact", "epic", {"ratio": 1}),
        ("fast", "epic", {}),
    ]
    assert (tags[0].round_id, tags[0].agent_id, tags[0].round_size, tags[0].session) == (
        "s:1",
        "judge",
        2,
        "s",
    )


def test_blocks_are_inlined_between_separators_and_other_parts_pass() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    parts = [{"type": "text", "text": "a"}, {"type": "block", "ref": "o:k"}, {"type": "block", "ref": "o:k"}]
    parsed = request(
        member("a", parts), member("b", [*parts, image, {"type": "text", "text": "z"}]), blocks={"o:k": "K"}
    )
    inlined = f"a{SEPARATOR}K{SEPARATOR}K{SEPARATOR}"
    assert parsed.chat_body(parsed.agents[0])["messages"] == [{"role": "user", "content": inlined}]
    assert parsed.chat_body(parsed.agents[1])["messages"][0]["content"] == [
        {"type": "text", "text": inlined},
        image,
        {"type": "text", "text": "z"},
    ]
    assert parsed.chat_body(parsed.agents[0], plain=True)["messages"][0]["content"] == "aKK"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agents": []}, ["got 0 agents", "1 to 4096"]),
        ({"agents": [member("a"), member("a")]}, ["'a' is there twice", "once per round"]),
        ({"agents": [member("a b")]}, ["'a b'", "A-Za-z0-9._:-"]),
        ({"agents": [member("a" * 129)]}, ["1 to 128 characters"]),
        ({"round_id": ""}, ["round_id", "1 to 128 characters"]),
        ({"session_id": "ü"}, ["session_id", "'ü'"]),
        ({"blocks": {"a/b": "x"}}, ["'a/b'", "A-Za-z0-9._:-"]),
        (
            {"agents": [member(content=[{"type": "block", "ref": "nope"}])], "blocks": {"o:k": ""}},
            ["'nope'", "o:k"],
        ),
        ({"agents": [member(content=[{"type": "block"}])]}, ["None", "'blocks' is empty"]),
        ({"agents": [member(content=["x"])]}, ["messages[0].content[0]", "an object with a 'type'"]),
        ({"agents": [member(content=[{"type": "text", "text": 5}])]}, ["int '5'", "text"]),
        ({"agents": [member(content=7)]}, ["int '7'", "a list of content parts"]),
        ({"agents": [{"agent_id": "a", "messages": []}]}, ["at least 1"]),
        ({"agents": [{"agent_id": "a", "messages": [{"content": "x"}]}]}, ["role", "a role name"]),
        ({"agents": [member(model="n")]}, ["'maria' sets 'model'", "whole round"]),
        ({"agents": [member(stream=True)]}, ["sets 'stream'"]),
        ({"messages": []}, ["no field 'messages'", "go into 'agents'"]),
        ({"round_size": 3}, ["no field 'round_size'"]),
        ({"fidelity": "best"}, ["'exact', 'balanced' or 'fast'", "best"]),
    ],
)
def test_a_malformed_round_is_refused_with_the_value_and_what_is_allowed(
    change: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ValidationError) as raised:
        RoundRequest.model_validate({"model": "m", "round_id": "s:1", "agents": [member()], **change})
    for piece in said:
        assert piece in str(raised.value)


def test_limits_say_which_one_and_by_how_much() -> None:
    parsed = request(member("a"), member("b"), blocks={"x": "é" * 3, "y": ""})
    assert parsed.exceeded(Limits()) is None
    assert "2 agents" in str(parsed.exceeded(Limits(max_agents=1)))
    assert "2 blocks" in str(parsed.exceeded(Limits(max_blocks=1)))
    assert "'x' has 6 bytes; allowed: at most 5" in str(parsed.exceeded(Limits(max_block_bytes=5)))


def test_totals_add_tokens_and_take_the_longest_time() -> None:
    reports = [
        MemberReport(round_id="r", agent_id="a", prompt_tokens=10, reused_tokens=4, restore_ms=2.0),
        MemberReport(round_id="r", agent_id="b", prompt_tokens=5, reused_tokens=1, restore_ms=None),
    ]
    totals = RoundTotals.of("r", reports, agents=3, failed=1)
    assert (totals.prompt_tokens, totals.reused_tokens, totals.restore_ms) == (15, 5, 2.0)
    assert (totals.agents, totals.failed) == (3, 1)


def test_an_answer_keeps_fields_it_does_not_know() -> None:
    answer = {"round_id": "r", "results": [{"agent_id": "a", "index": 0, "choices": [], "new": 1}], "id": "x"}
    assert RoundResponse.model_validate(answer).model_dump(exclude_unset=True) == answer
