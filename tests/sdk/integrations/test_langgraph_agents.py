"""Ready-made agents and the functional API: graphs that LangGraph itself builds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph_graphs import broadcaster, thread
from scripted_server import Scripted, serving

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(Scripted()) as scripted:
        yield scripted


def weigh(thing: str) -> str:
    """Weigh a thing.

    Args:
        thing: what to weigh.
    """
    return f"{thing}: two pounds"


def weighs_first(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    if messages[-1]["role"] == "tool":
        return {"content": f"{messages[0]['content']} {messages[-1]['content']}"}
    function = {"name": "weigh", "arguments": '{"thing": "tea"}'}
    return {"tool_calls": [{"id": "call-1", "type": "function", "function": function}]}


def test_parallel_react_agents_meet_at_every_step_of_their_loops(server: Scripted) -> None:
    server.script = weighs_first
    owner = broadcaster(server)
    builder = StateGraph(MessagesState)
    for name in ("ann", "bob", "eve"):
        builder.add_node(name, create_react_agent(owner.chat_model, [weigh], prompt=f"You are {name}."))
        builder.add_edge(START, name).add_edge(name, END)
    app = owner.wrap(builder.compile(checkpointer=InMemorySaver()))
    final = app.invoke({"messages": [("user", "How heavy is tea?")]}, thread())
    said = [message.text for message in final["messages"] if message.type == "ai" and message.text]
    assert sorted(said) == [f"You are {name}. tea: two pounds" for name in ("ann", "bob", "eve")]
    assert [agents for _, agents in server.rounds()] == [["ann.agent", "bob.agent", "eve.agent"]] * 2
    assert len({name for name, _ in server.rounds()}) == 2


def test_parallel_tasks_of_the_functional_api_are_a_round(server: Scripted) -> None:
    owner = broadcaster(server)
    llm = owner.chat_model

    @task
    def speak(name: str) -> str:
        return llm.invoke(f"{name}, speak.").text

    @entrypoint(checkpointer=InMemorySaver())
    def talk(names: list[str]) -> list[str]:
        first = [answer.result() for answer in [speak(name) for name in names]]
        return first + [answer.result() for answer in [speak(name.upper()) for name in names]]

    said = owner.wrap(talk).invoke(["ann", "bob", "eve"], thread())
    assert said == [f"re: {name}, speak." for name in ("ann", "bob", "eve", "ANN", "BOB", "EVE")]
    rounds = server.rounds()
    assert [len(agents) for _, agents in rounds] == [3, 3], "tasks that start later form the next round"
