"""Streaming, events, tracing and structured output of the chat model, as LangGraph's users know them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_graphs import Talk, broadcaster, debate, side_by_side, thread
from pydantic import BaseModel
from scripted_server import Scripted, serving
from tokendance_sdk.integrations.langgraph import RoundBroadcaster


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(Scripted()) as scripted:
        yield scripted


def graph(owner: RoundBroadcaster, asynchronous: bool = False) -> Any:
    builder = debate(owner.chat_model, 4, turns=2, asynchronous=asynchronous)
    return owner.wrap(builder.compile(checkpointer=InMemorySaver()))


def texts(parts: list[tuple[Any, Any]]) -> list[str]:
    """Streamed messages, put together by the message they belong to."""
    whole: dict[str, str] = defaultdict(str)
    for chunk, metadata in parts:
        assert metadata["langgraph_node"] == "speak"
        assert metadata["langgraph_step"] in (1, 3)
        whole[chunk.id] += chunk.text
    return list(whole.values())


def test_messages_mode_streams_every_members_chunks_with_its_nodes_metadata(server: Scripted) -> None:
    owner = broadcaster(server)
    parts = list(graph(owner).stream({"said": []}, thread(), stream_mode="messages"))
    expected = graph(broadcaster(server)).invoke({"said": []}, thread("other"))["said"]
    assert sorted(texts(parts)) == sorted(expected)
    assert len(parts) > 40, "in pieces, not whole"
    assert [len(agents) for _, agents in server.rounds()[:2]] == [4, 4]
    assert all(request.stream for request in server.requests()[:2])


async def test_messages_mode_is_the_same_async(server: Scripted) -> None:
    owner = broadcaster(server)
    parts = [
        part async for part in graph(owner, True).astream({"said": []}, thread(), stream_mode="messages")
    ]
    state = graph(broadcaster(server), True)
    expected = (await state.ainvoke({"said": []}, thread("other")))["said"]
    assert sorted(texts(parts)) == sorted(expected)
    assert [len(agents) for _, agents in server.rounds()[:2]] == [4, 4]


async def test_events_carry_chunks_and_metadata(server: Scripted) -> None:
    owner = broadcaster(server)
    events = [event async for event in graph(owner, True).astream_events({"said": []}, thread())]
    streamed = [event for event in events if event["event"] == "on_chat_model_stream"]
    ended = [event for event in events if event["event"] == "on_chat_model_end"]
    assert {event["metadata"]["langgraph_node"] for event in streamed} == {"speak"}
    assert len(ended) == 8
    assert all(isinstance(event["data"]["output"], AIMessage) for event in ended)
    by_run: dict[str, str] = defaultdict(str)
    for event in streamed:
        by_run[event["run_id"]] += event["data"]["chunk"].text
    assert sorted(by_run.values()) == sorted(event["data"]["output"].text for event in ended)


def test_a_streamed_answer_adds_up_to_the_whole_one(server: Scripted) -> None:
    model = broadcaster(server).chat_model
    whole = model.invoke("hello there, and everybody else")
    pieces = list(model.stream("hello there, and everybody else"))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert isinstance(total, AIMessageChunk)
    assert len(pieces) > 3
    assert total.content == whole.content
    assert total.usage_metadata == whole.usage_metadata
    assert total.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"] == "stop"
    assert total.response_metadata["tokendance"]["reused_tokens"] == 7
    assert whole.response_metadata["tokendance"]["reused_tokens"] == 7


async def test_astream_of_the_model_alone(server: Scripted) -> None:
    pieces = [piece.text async for piece in broadcaster(server).chat_model.astream("hello there")]
    assert "".join(pieces) == "re: hello there"


def test_a_fast_members_stream_ends_before_a_slow_ones(server: Scripted) -> None:
    server.slow = {"slow": 1.0}
    owner = broadcaster(server)
    llm = owner.chat_model
    ended: list[str] = []

    def speaker(name: str) -> Any:
        def speak(state: Talk) -> Talk:
            said = "".join(piece.text for piece in llm.stream(name))
            ended.append(name)
            return {"said": [said]}

        return speak

    app = owner.wrap(side_by_side({name: speaker(name) for name in ("slow", "fast")}).compile())
    assert sorted(app.invoke({"said": []})["said"]) == ["re: fast", "re: slow"]
    assert ended == ["fast", "slow"]
    assert [agents for _, agents in server.rounds()] == [["fast", "slow"]]


def test_members_that_stream_and_members_that_do_not_share_a_round(server: Scripted) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model
    nodes = {
        "streams": lambda state: {"said": ["".join(piece.text for piece in llm.stream("one"))]},
        "waits": lambda state: {"said": [llm.invoke("two").content]},
    }
    assert sorted(owner.wrap(side_by_side(nodes).compile()).invoke({"said": []})["said"]) == [
        "re: one",
        "re: two",
    ]
    assert [agents for _, agents in server.rounds()] == [["streams", "waits"]]


def test_callbacks_see_every_call_with_its_node_and_its_report(server: Scripted) -> None:
    class Trace(BaseCallbackHandler):
        def __init__(self) -> None:
            self.started: list[str] = []
            self.reports: list[Any] = []

        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            self.started.append(kwargs["metadata"]["langgraph_node"])

        def on_llm_end(self, response: Any, **kwargs: Any) -> None:
            self.reports.append(response.generations[0][0].message.response_metadata["tokendance"])

    trace = Trace()
    seen: list[Any] = []
    app = graph(broadcaster(server, on_round=seen.append))
    app.invoke({"said": []}, {**thread(), "callbacks": [trace]})
    assert trace.started == ["speak"] * 8
    assert {report["round_id"] for report in trace.reports} == {"sim:1", "sim:3"}
    assert {report["agent_id"] for report in trace.reports} == {f"speak.{n}" for n in range(4)}
    assert [result.report.totals.reused_tokens for result in seen] == [28, 28]


class Verdict(BaseModel):
    """A judge's verdict."""

    winner: str
    score: int


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(server: Scripted, method: Any, include_raw: bool) -> None:
    answer = '{"winner": "ann", "score": 7}'

    def script(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        if "tools" not in body:
            assert body["response_format"]["type"] in ("json_schema", "json_object")
            return {"content": answer}
        assert body["tool_choice"] == "required"
        call = {"id": "c", "type": "function", "function": {"name": "Verdict", "arguments": answer}}
        return {"tool_calls": [call]}

    server.script = script
    model = broadcaster(server).chat_model
    judge = model.with_structured_output(Verdict, method=method, include_raw=include_raw)
    found = judge.invoke("Who wins?")
    assert (found["parsed"] if include_raw else found) == Verdict(winner="ann", score=7)
    assert asyncio.run(judge.ainvoke("Who wins?")) is not None


def test_a_schema_as_a_dictionary_is_enforced_and_parsed(server: Scripted) -> None:
    server.script = lambda messages, body: {"content": '{"winner": "ann", "score": 7}'}
    judge = broadcaster(server).chat_model.with_structured_output(Verdict.model_json_schema(), strict=True)
    assert judge.invoke("Who wins?") == {"winner": "ann", "score": 7}
    (member,) = server.requests()[0].agents
    form = member.overrides["response_format"]["json_schema"]
    assert form["name"] == "Verdict"
    assert form["strict"] is True
    assert form["schema"]["properties"]["score"]["type"] == "integer"


def test_tool_calls_stream_too(server: Scripted) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "tea"}'}}
    server.script = lambda messages, body: {"tool_calls": [call]}
    total: Any = None
    for piece in broadcaster(server).chat_model.stream("look"):
        total = piece if total is None else total + piece
    assert total.tool_calls == [{"name": "look", "args": {"at": "tea"}, "id": "c", "type": "tool_call"}]


def test_sampling_fields_of_a_call_are_its_members_own(server: Scripted) -> None:
    owner = broadcaster(server, temperature=0.5, max_tokens=9)
    llm = owner.chat_model
    nodes = {
        "hot": lambda state: {"said": [llm.bind(temperature=1.0, stop=["."]).invoke("x").content]},
        "cold": lambda state: {"said": [llm.invoke("y", stop=["!"]).content]},
    }
    owner.wrap(side_by_side(nodes).compile()).invoke({"said": []})
    (request,) = server.requests()
    assert request.defaults["temperature"] == 0.5
    cold, hot = request.agents
    assert hot.overrides == {"temperature": 1.0, "stop": ["."]}
    assert cold.overrides == {"stop": ["!"]}
