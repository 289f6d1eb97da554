"""Map-reduce with `Send`: reports on parts of a subject, each revised in the light of all, then one summary.

pip install "tokendance[langgraph]" langchain-openai
export OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none
python examples/langgraph_mapreduce.py MODEL              # as anybody would write it
python examples/langgraph_mapreduce_tokendance.py MODEL   # the same, sent in rounds
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

PARTS = ["how bees find flowers", "how bees build a hive", "how bees live through winter", "what bees eat"]


class Survey(TypedDict):
    parts: list[str]
    reports: Annotated[list[str], operator.add]
    revised: Annotated[list[str], operator.add]
    summary: str


class Part(TypedDict):
    part: str
    reports: list[str]


def survey(llm: BaseChatModel) -> StateGraph[Survey]:
    def ask(role: str, text: str) -> str:
        return llm.invoke([("system", f"You are {role}."), ("user", text)]).text

    def report(state: Part) -> dict[str, list[str]]:
        return {"reports": [ask(f"an expert on {state['part']}", f"Write about {state['part']}.")]}

    def revise(state: Part) -> dict[str, list[str]]:
        reports = "\n".join(state["reports"])
        task = f"Read all reports:\n{reports}\nWrite again about {state['part']}, and repeat nobody."
        return {"revised": [ask(f"an expert on {state['part']}", task)]}

    def summarize(state: Survey) -> dict[str, str]:
        revised = "\n".join(state["revised"])
        return {"summary": ask("an editor", f"Read:\n{revised}\nSum it up.")}

    def fan_out(state: Survey) -> list[Send]:
        return [Send("report", Part(part=part, reports=[])) for part in state["parts"]]

    def fan_out_again(state: Survey) -> list[Send]:
        return [Send("revise", Part(part=part, reports=state["reports"])) for part in state["parts"]]

    graph = StateGraph(Survey)
    for node in (report, revise, summarize):
        graph.add_node(node.__name__, node)
    graph.add_node("collect", lambda state: {})
    graph.add_conditional_edges(START, fan_out, ["report"])
    graph.add_edge("report", "collect")
    graph.add_conditional_edges("collect", fan_out_again, ["revise"])
    graph.add_edge("revise", "summarize").add_edge("summarize", END)
    return graph


def run(llm: ChatOpenAI, config: RunnableConfig | None = None) -> list[str]:
    app = survey(llm).compile()
    final = app.invoke(Survey(parts=PARTS, reports=[], revised=[], summary=""), config)
    return [*final["reports"], *final["revised"], final["summary"]]


if __name__ == "__main__":
    print(*run(ChatOpenAI(model=sys.argv[1], temperature=0, max_tokens=96)), sep="\n---\n")
