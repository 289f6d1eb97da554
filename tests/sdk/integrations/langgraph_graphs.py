"""Graphs as applications write them, and broadcasters for the scripted server."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from openai import AsyncOpenAI, OpenAI
from scripted_server import Scripted
from tokendance_sdk.integrations.langgraph import RoundBroadcaster

WINDOW = 0.8
"""Seconds: on a busy machine nodes of one superstep may start further apart than a round usually waits."""


class Talk(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    turn: int


class Turn(TypedDict):
    speaker: int
    said: list[str]


def broadcaster(server: Scripted, **options: Any) -> RoundBroadcaster:
    given = {
        "client": OpenAI(base_url=server.base_url, api_key="k", max_retries=0),
        "async_client": AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0),
        "model": "m",
        "window": WINDOW,
    }
    return RoundBroadcaster(**{**given, **options})


def prompt(turn: Turn) -> list[tuple[str, str]]:
    heard = "\n".join(turn["said"])
    return [
        ("system", f"speaker{turn['speaker']} is who you are."),
        ("user", f"Heard so far:\n{heard}\nSpeaker {turn['speaker']}, say what you think of it."),
    ]


def debate(
    llm: Any, speakers: int, turns: int = 2, asynchronous: bool = False, **node: Any
) -> StateGraph[Any]:
    """A fan-out by `Send`: every speaker hears what was said in the last turn, for some turns."""

    def speak(turn: Turn) -> Talk:
        return {"said": [llm.invoke(prompt(turn)).content]}

    async def aspeak(turn: Turn) -> Talk:
        return {"said": [(await llm.ainvoke(prompt(turn))).content]}

    def sends(state: Talk) -> Any:
        if state.get("turn", 0) >= turns:
            return END
        last = state["said"][-speakers:]
        return [Send("speak", {"speaker": n, "said": last}) for n in range(speakers)]

    builder = StateGraph(Talk)
    builder.add_node("speak", aspeak if asynchronous else speak, **node)
    builder.add_node("next", lambda state: {"turn": state.get("turn", 0) + 1})
    builder.add_conditional_edges(START, sends, ["speak"])
    builder.add_edge("speak", "next")
    builder.add_conditional_edges("next", sends, ["speak", END])
    return builder


def side_by_side(nodes: dict[str, Callable[[Any], Any]], **options: Any) -> StateGraph[Any]:
    """The nodes in parallel, in one superstep."""
    builder = StateGraph(Talk)
    for name, node in nodes.items():
        builder.add_node(name, node, **options)
        builder.add_edge(START, name)
    return builder


def thread(name: str = "sim", **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}
