"""Bytes of a LangGraph checkpoint (SQLite) per byte of unique text, after rounds in which everybody hears everybody.

With `keep_once` the state holds each output once. For comparison: a state in which every agent keeps what it has heard,
as graphs are often written.
"""

from __future__ import annotations

import operator
import sqlite3
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from tokendance_sdk.integrations.langgraph import Output, keep_once

from tokendance_bench.instant_server import answer

ROUNDS = 3


class Once(TypedDict):
    """Each output once, however many read it."""

    outputs: Annotated[list[Output], keep_once]


def _grow(old: dict[str, list[str]], new: dict[str, list[str]]) -> dict[str, list[str]]:
    return {who: operator.add(old.get(who, []), new.get(who, [])) for who in {**old, **new}}


class Each(TypedDict):
    """Agent -> all it has heard."""

    memories: Annotated[dict[str, list[str]], _grow]
    turn: int


def checkpoint_headline() -> dict[str, float]:
    """Bytes per unique byte, for few and for many agents."""
    found = {}
    for agents in (4, 32):
        for name, builder in (("keep_once", _once), ("own_memories", _each)):
            size = _last_checkpoint(builder(agents))
            unique = sum(len(answer(f"agent{n}", r)) for n in range(agents) for r in range(ROUNDS))
            found[f"checkpoint_bytes_per_unique_byte_{name}_n{agents}"] = round(size / unique, 2)
    return found


def _once(agents: int) -> Any:
    def speak(state: Once) -> dict[str, Any]:
        turn = len(state["outputs"]) // agents
        texts = {f"agent{n}": answer(f"agent{n}", turn) for n in range(agents)}
        said = [Output(round=turn, agent=who, text=text, round_id=f"t:{turn}") for who, text in texts.items()]
        return {"outputs": said}

    graph: Any = StateGraph(Once).add_node("round", speak).add_edge(START, "round")
    graph.add_conditional_edges("round", lambda s: END if len(s["outputs"]) >= agents * ROUNDS else "round")
    return graph, {"outputs": []}


def _each(agents: int) -> Any:
    def speak(state: Each) -> dict[str, Any]:
        texts = [answer(f"agent{n}", state["turn"]) for n in range(agents)]
        return {"memories": {f"agent{n}": texts for n in range(agents)}, "turn": state["turn"] + 1}

    graph: Any = StateGraph(Each).add_node("round", speak).add_edge(START, "round")
    graph.add_conditional_edges("round", lambda s: END if s["turn"] >= ROUNDS else "round")
    return graph, {"memories": {}, "turn": 0}


def _last_checkpoint(made: Any) -> int:
    builder, begin = made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.sqlite"
        with SqliteSaver.from_conn_string(str(path)) as saver:
            builder.compile(checkpointer=saver).invoke(begin, {"configurable": {"thread_id": "t"}})
        with sqlite3.connect(path) as database:
            newest = "select length(checkpoint) from checkpoints order by checkpoint_id desc limit 1"
            return int(database.execute(newest).fetchone()[0])
