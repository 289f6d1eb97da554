"""The rounds of `sdk` as LangGraph graphs: a node that runs the agents, and a fan-out of nodes."""

from __future__ import annotations

import itertools
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import SecretStr
from tokendance_sdk.integrations.langgraph import Output, RoundBroadcaster, keep_once

from tokendance_bench.instant_server import answer
from tokendance_bench.sdk_setting import TASK, Setting

_turns = itertools.count()


class Village(TypedDict):
    """The state of a node that runs its agents itself."""

    histories: dict[str, str]
    outputs: Annotated[list[Output], keep_once]
    task: str


class Talk(TypedDict, total=False):
    """The state of a fan-out."""

    said: Annotated[list[str], operator.add]
    turn: int


class InstantChatModel(BaseChatModel):
    """A chat model that is not there."""

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer("agent", next(_turns))))])


def play_node(at: Setting) -> None:
    """`RoundBroadcaster.node()`, one step a round."""
    with at.sync() as client:
        graph: Any = StateGraph(Village)
        graph.add_node("round", RoundBroadcaster(client=client, model="m").node())
        graph.add_edge(START, "round")
        enough = at.rounds * at.agents
        graph.add_conditional_edges("round", lambda s: END if len(s["outputs"]) >= enough else "round")
        people = {who: f"You are {who}." for who in at.names}
        graph.compile().invoke({"histories": people, "outputs": [], "task": TASK})


def play_graph(at: Setting, kind: str) -> None:
    """A `Send` to every agent in every round, its model called by the node; `kind`: ours, instant, ordinary."""
    llm: Any = ChatOpenAI(base_url=at.base_url, api_key=SecretStr("k"), model="m")
    broadcaster = RoundBroadcaster.from_model(llm)
    if kind != "ordinary":
        llm = broadcaster.chat_model if kind == "ours" else InstantChatModel()

    def speak(state: dict[str, Any]) -> dict[str, Any]:
        heard = "\n".join(state["said"])
        said = llm.invoke([("system", f"You are {state['who']}."), ("user", f"Heard:\n{heard}\n{TASK}")])
        return {"said": [said.text]}

    def sends(state: Talk) -> Any:
        if state.get("turn", 0) >= at.rounds:
            return END
        last = state.get("said", [])[-at.agents :]
        return [Send("speak", {"who": who, "said": last}) for who in at.names]

    builder: Any = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_node("next", lambda state: {"turn": state.get("turn", 0) + 1})
    builder.add_conditional_edges(START, sends, ["speak"])
    builder.add_edge("speak", "next")
    builder.add_conditional_edges("next", sends, ["speak", END])
    app = broadcaster.wrap(builder.compile())  # also without rounds: as many threads
    app.invoke({"said": []})
