"""Streamed rounds: pieces as they come, and the same result in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_server import FakeServer
from test_client import both, prompts, run, sync, twin
from tokendance_sdk.errors import RoundStreamError, ServerError
from tokendance_sdk.events import RoundAccumulator, RoundEvent
from tokendance_sdk.protocol import SEPARATOR
from tokendance_sdk.requests import prepare
from tokendance_sdk.results import RoundResult

pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")
ARGUMENTS: dict[str, Any] = {"model": "m", "round_id": "sim:1", "agents": prompts()}


def stream(server: FakeServer, kind: str) -> tuple[list[RoundEvent], RoundResult]:
    if kind == "sync":
        with sync(server).rounds.stream(**ARGUMENTS) as events:
            return list(events), events.result()

    async def read() -> tuple[list[RoundEvent], RoundResult]:
        owner = twin(server)
        async with owner.client, owner.rounds.stream(**ARGUMENTS) as events:
            return [event async for event in events], await events.result()

    return asyncio.run(read())


@both
@pytest.mark.parametrize("knows_rounds", [True, False])
def test_pieces_add_up_to_what_create_returns(
    rounds_server: FakeServer, plain_server: FakeServer, kind: str, knows_rounds: bool
) -> None:
    server = rounds_server if knows_rounds else plain_server
    events, result = stream(server, kind)
    whole = run(server, kind)
    assert result.outputs == whole.outputs
    assert result.usage == whole.usage
    assert [member.report for member in result] == [member.report for member in whole]
    for who, text in whole.outputs.items():
        assert "".join(event.text for event in events if event.agent_id == who) == text
    assert [event.kind for event in events].count("report") == 1
    assert events[-1].kind == "report"


@both
@pytest.mark.parametrize("knows_rounds", [True, False])
def test_a_members_failure_does_not_end_the_stream(
    rounds_server: FakeServer, plain_server: FakeServer, kind: str, knows_rounds: bool
) -> None:
    server = rounds_server if knows_rounds else plain_server
    server.failing = {"klaus": 400}
    events, result = stream(server, kind)
    assert [event.agent_id for event in events if event.kind == "error"] == ["klaus"]
    assert list(result.outputs) == ["maria", "eve"]
    assert "refused with 400" in result["klaus"].error.message  # type: ignore[union-attr]


@both
def test_a_stream_that_breaks_off_says_so_and_keeps_what_came(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.break_off_stream = True
    with pytest.raises(RoundStreamError, match="'sim:1' broke off"):
        stream(rounds_server, kind)


def test_leaving_the_loop_early_loses_nothing(rounds_server: FakeServer) -> None:
    events = sync(rounds_server).rounds.stream(**ARGUMENTS)
    for _ in events:
        break
    assert events.result().outputs == run(rounds_server, "sync").outputs


def test_a_closed_stream_has_no_result(rounds_server: FakeServer) -> None:
    with sync(rounds_server).rounds.stream(**ARGUMENTS) as events:
        for _ in events:
            break
    with pytest.raises(RoundStreamError, match="closed before its end"):
        events.result()


def test_separators_never_reach_the_answer_of_a_plain_server(plain_server: FakeServer) -> None:
    events, result = stream(plain_server, "sync")
    typed = sum(prompt.plain_messages[-1]["content"].count(SEPARATOR) for prompt in prompts())
    assert sum(text.count(SEPARATOR) for text in result.outputs.values()) == typed
    assert len(events) > 3


def accumulator() -> RoundAccumulator:
    return RoundAccumulator(prepare("m", "r", prompts(("ann", "bob")), None, {}).request)


def test_tool_calls_are_put_together_by_index() -> None:
    total = accumulator()
    pieces: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "go", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]},
    ]
    for delta in pieces:
        total.feed(None, {"agent_id": "ann", "choices": [{"index": 0, "delta": delta}]})
    total.feed(
        None, {"agent_id": "ann", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    )
    calls = total.result()["ann"].message["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("c1", "look", '{"a": 1}'),
        ("c2", "go", "{}"),
    ]
    assert total.result()["ann"].text == ""


def test_an_unended_answer_is_a_failure_not_a_short_answer() -> None:
    total = accumulator()
    total.feed(None, {"agent_id": "ann", "choices": [{"index": 0, "delta": {"content": "Hal"}}]})
    error = total.result()["ann"].error
    assert error is not None
    assert error.type == "incomplete"


def test_an_event_of_a_stranger_is_refused() -> None:
    with pytest.raises(ServerError, match="unknown agent 'eve'; agents of this round: ann, bob"):
        accumulator().feed(None, {"agent_id": "eve", "choices": []})
