"""Parallel debate: all debaters speak at once, hear one another, and speak again.

pip install "tokendance[langgraph]" langchain-openai
export OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none
python examples/langgraph_debate.py MODEL              # as anybody would write it
python examples/langgraph_debate_tokendance.py MODEL   # the same, sent in rounds
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

DEBATERS = {
    "ecologist": "You are an ecologist. You argue from what forests, rivers and animals need.",
    "economist": "You are an economist. You argue from costs, jobs and prices.",
    "engineer": "You are an engineer. You argue from what can be built and kept running.",
    "teacher": "You are a teacher. You argue from what children will have to live with.",
}


class Debate(TypedDict):
    question: str
    turn: int
    speeches: Annotated[list[str], operator.add]


def debate(llm: BaseChatModel, turns: int) -> StateGraph[Debate]:
    def debater(name: str) -> Any:
        def speak(state: Debate) -> dict[str, list[str]]:
            heard = "\n".join(state["speeches"][-len(DEBATERS) :]) or "Nobody has spoken yet."
            answer = llm.invoke(
                [
                    ("system", DEBATERS[name]),
                    ("user", f"{state['question']}\nThe debate so far:\n{heard}\nNow speak yourself."),
                ]
            )
            return {"speeches": [answer.text]}

        return speak

    graph = StateGraph(Debate)
    graph.add_node("next_turn", lambda state: {"turn": state["turn"] + 1})
    for name in DEBATERS:
        graph.add_node(name, debater(name))
        graph.add_edge(START, name)
    graph.add_edge(list(DEBATERS), "next_turn")
    graph.add_conditional_edges("next_turn", lambda s: [*DEBATERS] if s["turn"] < turns else END)
    return graph


def run(llm: ChatOpenAI, turns: int = 3, config: RunnableConfig | None = None) -> list[str]:
    app = debate(llm, turns).compile()
    begin = Debate(question="Should our town build a dam?", turn=0, speeches=[])
    speeches: list[str] = app.invoke(begin, config)["speeches"]
    return speeches


if __name__ == "__main__":
    print(*run(ChatOpenAI(model=sys.argv[1], temperature=0, max_tokens=96)), sep="\n---\n")
