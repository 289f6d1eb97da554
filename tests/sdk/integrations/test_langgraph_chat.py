"""A chat model whose calls of one superstep become one round: real graphs, real checkpointers, real HTTP."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_graphs import Talk, broadcaster, debate, side_by_side, thread
from scripted_server import CHAT_PATH, Scripted, serving
from tokendance_sdk.blocks import Block
from tokendance_sdk.integrations.langgraph import RoundBroadcaster, shared
from tokendance_sdk.protocol import ID_PATTERN, ROUNDS_PATH, SEPARATOR
from tokendance_sdk.wire import PlainServerWarning

SPEAKERS = [f"speak.{n}" for n in range(8)]


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(Scripted()) as scripted:
        yield scripted


def run(owner: RoundBroadcaster, builder: StateGraph[Any], config: Any = None, saver: Any = None) -> Any:
    return owner.wrap(builder.compile(checkpointer=saver)).invoke({"said": []}, config)


def test_a_fan_out_by_send_is_one_request_a_superstep_sync_and_async(server: Scripted) -> None:
    owner = broadcaster(server)
    sync = run(owner, debate(owner.chat_model, 8, turns=3), thread("sync"), InMemorySaver())
    app = owner.wrap(
        debate(owner.chat_model, 8, turns=3, asynchronous=True).compile(checkpointer=InMemorySaver())
    )
    asynchronous = asyncio.run(app.ainvoke({"said": []}, thread("async")))
    assert sync["said"] == asynchronous["said"]
    assert len(sync["said"]) == 24
    assert server.rounds() == [(f"{name}:{n}", SPEAKERS) for name in ("sync", "async") for n in (1, 3, 5)]
    assert [request.session_id for request in server.requests()] == ["sync"] * 3 + ["async"] * 3
    assert {path for path, _, _ in server.seen} == {ROUNDS_PATH}


def test_what_was_said_before_is_enclosed_and_travels_once(server: Scripted) -> None:
    owner = broadcaster(server)
    said = run(owner, debate(owner.chat_model, 8, turns=2), thread(), InMemorySaver())["said"][:8]
    first, second = server.requests()
    assert first.blocks == {}
    assert second.blocks == {Block(text).id: text for text in said}
    content = server.prompt(1, "speak.3")[-1]["content"]
    heard = f"{SEPARATOR}\n{SEPARATOR}".join(said)
    assert content == f"Heard so far:\n{SEPARATOR}{heard}{SEPARATOR}\nSpeaker 3, say what you think of it."


def test_separators_reach_neither_answers_nor_state(server: Scripted) -> None:
    server.script = lambda messages, body: {
        "content": f"I read {len(str(messages))} letters and a {SEPARATOR}."
    }
    owner = broadcaster(server)
    said = run(owner, debate(owner.chat_model, 3, turns=3))["said"]
    assert all(text.count(SEPARATOR) == 1 for text in said), "the model's own, as it wrote it"
    content = server.prompt(1, "speak.0")[-1]["content"]
    assert content.count(SEPARATOR) == 6, "only the block edges; the model's own are escaped"


def test_shared_marks_any_other_text(server: Scripted) -> None:
    owner = broadcaster(server)
    brief = "The brief that every agent of this test is given to read."
    llm = owner.chat_model
    nodes = {
        name: lambda state, name=name: {"said": [llm.invoke(f"{name}: {shared(brief)} Go.").content]}
        for name in "ab"
    }
    run(owner, side_by_side(nodes))
    (request,) = server.requests()
    assert request.blocks == {Block(brief).id: brief}
    assert server.prompt(0, "a")[0]["content"] == f"a: {SEPARATOR}{brief}{SEPARATOR} Go."


def test_with_fidelity_exact_the_prompt_is_the_graphs_own(server: Scripted) -> None:
    owner = broadcaster(server, fidelity="exact")
    run(owner, debate(owner.chat_model, 3, turns=2))
    assert len(server.requests()) == 2
    assert not any(request.blocks for request in server.requests())
    judge = broadcaster(server)
    nodes = {
        "judge": lambda state: {
            "said": [judge.chat_model.bind(fidelity="exact", agent_id="j").invoke("x").content]
        }
    }
    run(judge, side_by_side(nodes))
    (member,) = server.requests()[-1].agents
    assert (member.agent_id, member.fidelity) == ("j", "exact")


def test_nodes_of_different_names_and_calls_inside_one_node_share_the_round(server: Scripted) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model

    async def crowd(state: Talk) -> Talk:
        answers = await asyncio.gather(*(llm.ainvoke(f"crowd {n}") for n in range(3)))
        return {"said": [answer.content for answer in answers]}

    async def one(state: Talk) -> Talk:
        return {"said": [(await llm.ainvoke("one")).content]}

    app = owner.wrap(side_by_side({"crowd": crowd, "one": one}).compile())
    final = asyncio.run(app.ainvoke({"said": []}))
    assert sorted(final["said"]) == ["re: crowd 0", "re: crowd 1", "re: crowd 2", "re: one"]
    ((_, agents),) = server.rounds()
    assert agents == ["crowd", "crowd.2", "crowd.3", "one"]


@pytest.mark.parametrize("saver", [None, "memory"])
def test_parallel_subgraphs_meet_in_one_round_at_each_of_their_steps(server: Scripted, saver: Any) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model

    def worker(name: str) -> Any:
        builder = StateGraph(Talk)
        builder.add_node("draft", lambda state: {"said": [llm.invoke(f"{name} drafts").content]})
        builder.add_node("refine", lambda state: {"said": [llm.invoke(f"{name} refines").content]})
        builder.add_edge(START, "draft").add_edge("draft", "refine")
        return builder.compile()

    names = ("east", "west", "north")
    builder = side_by_side({name: worker(name) for name in names})
    final = run(owner, builder, thread(), InMemorySaver() if saver else None)
    assert len(final["said"]) == 6
    ids, agents = zip(*server.rounds(), strict=True)
    assert list(agents) == [sorted(f"{name}.{step}" for name in names) for step in ("draft", "refine")]
    assert len(set(ids)) == 2
    assert all(name.startswith("sim.") and ID_PATTERN.fullmatch(name) for name in ids)


def test_later_calls_of_a_tool_loop_go_alone_with_the_same_round_id(server: Scripted) -> None:
    def call_once(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return {"content": f"The tool says {messages[-1]['content']}."}
        function = {"name": "lookup", "arguments": '{"word": "tea"}'}
        return {"tool_calls": [{"id": "call-1", "type": "function", "function": function}]}

    def lookup(word: str) -> str:
        """Look a word up.

        Args:
            word: what to look up.
        """
        return f"{word} is a drink"

    server.script = call_once
    owner = broadcaster(server)
    llm = owner.chat_model.bind_tools([lookup], tool_choice="any")

    def agent(state: Talk) -> Talk:
        from langchain_core.messages import HumanMessage, ToolMessage

        messages: list[Any] = [HumanMessage("What is tea?")]
        answer = llm.invoke(messages)
        (call,) = answer.tool_calls
        assert call["args"] == {"word": "tea"}
        messages += [answer, ToolMessage(lookup(**call["args"]), tool_call_id=call["id"])]
        return {"said": [llm.invoke(messages).content]}

    final = run(owner, side_by_side({"a": agent, "b": agent}), thread(), InMemorySaver())
    assert final["said"] == ["The tool says tea is a drink."] * 2
    rounds = server.rounds()
    assert rounds[0] == ("sim:1", ["a", "b"])
    assert sorted(rounds[1:]) == [("sim:1", ["a"]), ("sim:1", ["b"])]
    member = server.requests()[0].agents[0]
    assert member.overrides["tool_choice"] == "required"
    assert member.overrides["tools"][0]["function"]["name"] == "lookup"
    sent = server.requests()[1].agents[0].messages
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["content"] is None
    assert sent[1]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"word": "tea"}'}


def test_a_resume_from_sqlite_in_a_new_process_asks_the_same(server: Scripted, tmp_path: Path) -> None:
    def graph(owner: RoundBroadcaster) -> StateGraph[Any]:
        return debate(owner.chat_model, 4, turns=2)

    with serving(Scripted()) as whole, SqliteSaver.from_conn_string(":memory:") as saver:
        expected = run(broadcaster(whole), graph(broadcaster(whole)), thread(), saver)
        wanted = whole.requests()[1]
    path = str(tmp_path / "threads.sqlite")
    first = broadcaster(server)
    with SqliteSaver.from_conn_string(path) as saver:
        app = first.wrap(graph(first).compile(checkpointer=saver, interrupt_after=["next"]))
        app.invoke({"said": []}, thread())
    with serving(Scripted()) as cold, SqliteSaver.from_conn_string(path) as saver:
        second = broadcaster(cold)
        final = second.wrap(graph(second).compile(checkpointer=saver)).invoke(None, thread())
        (request,) = cold.requests()
    assert final["said"] == expected["said"]
    assert (request.round_id, request.session_id) == (wanted.round_id, wanted.session_id)
    assert request.agents == wanted.agents
    assert request.blocks == wanted.blocks


async def test_an_async_sqlite_saver_works_too(server: Scripted, tmp_path: Path) -> None:
    owner = broadcaster(server)
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.sqlite")) as saver:
        graph = debate(owner.chat_model, 3, asynchronous=True)
        app = owner.wrap(graph.compile(checkpointer=saver, interrupt_after=["next"]))
        await app.ainvoke({"said": []}, thread())
        fresh = broadcaster(server)
        app = fresh.wrap(debate(fresh.chat_model, 3, asynchronous=True).compile(checkpointer=saver))
        final = await app.ainvoke(None, thread())
        assert (await app.aget_state(thread())).values["said"] == final["said"]
    assert len(final["said"]) == 6
    assert len(server.requests()[-1].blocks) == 3


def test_time_travel_forms_rounds_again(server: Scripted) -> None:
    owner = broadcaster(server)
    app = owner.wrap(debate(owner.chat_model, 4, turns=2).compile(checkpointer=InMemorySaver()))
    final = app.invoke({"said": []}, thread())
    history = list(app.get_state_history(thread()))
    before = next(snapshot for snapshot in history if snapshot.next and snapshot.values["said"])
    first = next(
        snapshot for snapshot in history if snapshot.next[:1] == ("speak",) and len(snapshot.next) == 4
    )
    for snapshot in (before, first, first):
        count = len(server.seen)
        again = app.invoke(None, snapshot.config)
        assert again["said"] == final["said"]
        assert all(len(agents) == 4 for _, agents in server.rounds()[count:])
    assert all(session == "sim" for session in (request.session_id for request in server.requests()))


def test_an_interrupt_and_its_resume_keep_the_round_id(server: Scripted) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model

    def careful(state: Talk) -> Talk:
        text = llm.invoke("careful").content
        return {"said": [f"{text}, {interrupt('ok?')}"]}

    nodes = {"careful": careful, "quick": lambda state: {"said": [llm.invoke("quick").content]}}
    app = owner.wrap(side_by_side(nodes).compile(checkpointer=InMemorySaver()))
    assert app.invoke({"said": []}, thread())["__interrupt__"][0].value == "ok?"
    final = app.invoke(Command(resume="yes"), thread())
    assert sorted(final["said"]) == ["re: careful, yes", "re: quick"]
    assert server.rounds() == [("sim:1", ["careful", "quick"]), ("sim:1", ["careful"])]


def test_without_a_thread_every_run_has_a_session_of_its_own(server: Scripted) -> None:
    owner = broadcaster(server)
    app = owner.wrap(debate(owner.chat_model, 2).compile())
    app.invoke({"said": []})
    app.invoke({"said": []})
    sessions = [request.session_id for request in server.requests()]
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]
    assert len({request.round_id for request in server.requests()}) == 4


def test_outside_a_graph_a_call_goes_alone_and_at_once(server: Scripted) -> None:
    owner = broadcaster(server, window=30.0)
    assert owner.chat_model.invoke("hello").content == "re: hello"
    assert [answer.content for answer in owner.chat_model.batch(["a", "b"])] == ["re: a", "re: b"]
    assert [agents for _, agents in server.rounds()] == [["agent"]] * 3


def test_a_plain_server_gives_the_same_result_with_one_warning(server: Scripted) -> None:
    owner = broadcaster(server)
    expected = run(owner, debate(owner.chat_model, 4, turns=3))
    with serving(Scripted(knows_rounds=False)) as plain:
        other = broadcaster(plain)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            final = run(other, debate(other.chat_model, 4, turns=3))
            asyncio.run(other.chat_model.ainvoke("plain hello"))
        chats = [body for path, _, body in plain.seen if path == CHAT_PATH]
    assert final["said"] == expected["said"]
    assert len(chats) == 13
    assert SEPARATOR not in str(chats)
    assert len([each for each in warned if each.category is PlainServerWarning]) == 1


def test_a_graph_may_itself_be_a_node_and_keeps_its_interface(server: Scripted) -> None:
    owner = broadcaster(server)
    inner = owner.wrap(debate(owner.chat_model, 3, turns=1).compile(name="inner"))
    outer = StateGraph(Talk).add_node("team", inner).add_edge(START, "team").add_edge("team", END)
    app = owner.wrap(outer.compile(checkpointer=InMemorySaver()))
    assert len(app.invoke({"said": []}, thread())["said"]) == 3
    assert app.get_state(thread()).values["turn"] == 1
    assert dict(app.get_subgraphs())["team"] is inner
    assert app.with_config(tags=["t"]).config["tags"] == ["t"]
    assert "team" in app.get_graph().nodes
    assert [agents for _, agents in server.rounds()] == [
        ["team.speak.0", "team.speak.1", "team.speak.2"],
    ]
