"""A supervisor with parallel workers: it gives a task, all work at once and read one another, it sums up.

pip install "tokendance[langgraph]" langchain-openai
export OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none
python examples/langgraph_supervisor.py MODEL              # as anybody would write it
python examples/langgraph_supervisor_tokendance.py MODEL   # the same, sent in rounds
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from tokendance_sdk.integrations.langgraph import RoundBroadcaster

WORKERS = {
    "researcher": "You are a researcher. You collect facts and say how sure you are.",
    "critic": "You are a critic. You say what is missing and what may be wrong.",
    "writer": "You are a writer. You turn what is known into plain sentences.",
}


class Office(TypedDict):
    task: str
    turn: int
    messages: Annotated[list[AnyMessage], operator.add]


class Job(TypedDict):
    task: str
    messages: list[AnyMessage]


class Report(TypedDict):
    messages: list[AnyMessage]


def office(llm: BaseChatModel, turns: int) -> StateGraph[Office]:
    def supervisor(state: Office) -> dict[str, Any]:
        rules = SystemMessage("You are a supervisor. Tell your team in a few sentences what to do next.")
        order = llm.invoke([rules, HumanMessage(state["task"]), *state["messages"][-len(WORKERS) :]])
        return {"messages": [order], "turn": state["turn"] + 1}

    def worker(name: str) -> StateGraph[Job, None, Job, Report]:
        def work(state: Job) -> dict[str, Any]:
            rules = SystemMessage(WORKERS[name])
            return {"messages": [llm.invoke([rules, *state["messages"], HumanMessage(state["task"])])]}

        graph = StateGraph(Job, output_schema=Report)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        return graph

    graph = StateGraph(Office)
    graph.add_node("supervisor", supervisor)
    graph.add_edge(START, "supervisor")
    for name in WORKERS:
        graph.add_node(name, worker(name).compile())
        graph.add_edge(name, "supervisor")
    graph.add_conditional_edges("supervisor", lambda s: [*WORKERS] if s["turn"] <= turns else END)
    return graph


def run(llm: ChatOpenAI, turns: int = 2, config: RunnableConfig | None = None) -> list[str]:
    broadcaster = RoundBroadcaster.from_model(llm)
    app = broadcaster.wrap(office(broadcaster.chat_model, turns).compile())
    begin = Office(task="Write a page about the history of tea.", turn=0, messages=[])
    return [message.text for message in app.invoke(begin, config)["messages"]]


if __name__ == "__main__":
    print(*run(ChatOpenAI(model=sys.argv[1], temperature=0, max_tokens=96)), sep="\n---\n")
