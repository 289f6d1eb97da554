"""64 agents x 3 rounds: nothing lost or doubled, text once on the wire and once in the checkpoint."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph_graphs import broadcaster, debate, thread
from openai import OpenAI
from scripted_server import Scripted, serving
from tokendance_sdk.integrations.langgraph import Output, RoundBroadcaster, keep_once
from tokendance_sdk.integrations.langgraph.gather import assemble

AGENTS, ROUNDS = 64, 3


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(Scripted()) as scripted:
        yield scripted


def brief(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    """Something that nobody else says, of a length that does not depend on how many speak."""
    who = str(messages[0]["content"]).split()[0]
    return {"content": f"{who} heard {len(str(messages))} letters and answers at some length. " * 4}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_64_agents_in_3_rounds_lose_and_double_nothing(server: Scripted, asynchronous: bool) -> None:
    server.script = brief
    owner = broadcaster(server, window=1.0)
    app = owner.wrap(debate(owner.chat_model, AGENTS, ROUNDS, asynchronous).compile())
    final = asyncio.run(app.ainvoke({"said": []})) if asynchronous else app.invoke({"said": []})
    assert len(final["said"]) == AGENTS * ROUNDS
    assert [len(agents) for _, agents in server.rounds()] == [AGENTS] * ROUNDS
    assert set(Counter(server.answered).values()) == {1}
    for n in range(ROUNDS):
        said = final["said"][n * AGENTS : (n + 1) * AGENTS]
        assert [text.split()[0] for text in said] == [f"speaker{k}" for k in range(AGENTS)]


def test_shared_text_travels_once_and_headers_stay_small(server: Scripted) -> None:
    server.script = brief
    owner = broadcaster(server, window=1.0)
    app = owner.wrap(debate(owner.chat_model, AGENTS, 2).compile())
    said = app.invoke({"said": []})["said"]
    _, headers, body = server.seen[-1]
    wire = json.dumps(body, ensure_ascii=False)
    for text in said[:AGENTS]:
        assert wire.count(json.dumps(text.strip(), ensure_ascii=False)[1:-1]) == 1
    assert sum(len(name) + len(value) for name, value in headers.items()) < 1024


def test_gathering_64_calls_marks_what_all_of_them_heard(server: Scripted) -> None:
    owner = broadcaster(server)
    words = random.Random(7)
    texts = [" ".join(f"{words.getrandbits(24):x}" for _ in range(150)) for _ in range(AGENTS)]
    for text in texts:
        owner.calls.remember("g.test", text)
    heard = "\n".join(text.strip() for text in texts[:8])
    prompts = [[SystemMessage(f"You are {n}."), HumanMessage(f"{heard}\nGo, {n}.")] for n in range(AGENTS)]
    owner.calls.home = "g.test"
    calls = [owner.calls.call("m", prompt, {}, streamed=False) for prompt in prompts]
    assert len(assemble(calls)["blocks"]) == 8


class Village(TypedDict):
    histories: dict[str, str]
    outputs: Annotated[list[Output], keep_once]
    task: str


def last_checkpoint(path: Path) -> int:
    """Bytes of the thread's newest checkpoint, channel values included."""
    with sqlite3.connect(path) as database:
        row = database.execute(
            "select length(checkpoint) from checkpoints order by checkpoint_id desc limit 1"
        ).fetchone()
    return int(row[0])


def grown(server: Scripted, path: Path, agents: int) -> tuple[int, int]:
    """(bytes of the last checkpoint, bytes of unique text in it) after three rounds of `agents`."""
    node = RoundBroadcaster(client=OpenAI(base_url=server.base_url, api_key="k"), model="m").node()
    builder = StateGraph(Village).add_node("round", node).add_edge(START, "round")
    builder.add_conditional_edges(
        "round", lambda state: END if len(state["outputs"]) == 3 * agents else "round"
    )
    with SqliteSaver.from_conn_string(str(path)) as saver:
        histories = {f"agent{n}": f"agent{n} remembers its own day." for n in range(agents)}
        begin = {"histories": histories, "outputs": [], "task": "Speak."}
        final = builder.compile(checkpointer=saver).invoke(begin, thread())
    texts = {output["text"] for output in final["outputs"]} | set(histories.values())
    assert len(texts) == 4 * agents
    return last_checkpoint(path), sum(len(text.encode()) for text in texts)


def test_a_checkpoint_grows_with_unique_text_not_with_agents_times_text(
    server: Scripted, tmp_path: Path
) -> None:
    server.script = brief
    few = grown(server, tmp_path / "few.sqlite", 4)
    many = grown(server, tmp_path / "many.sqlite", 32)
    overhead = [size / unique for size, unique in (few, many)]
    print(
        f"checkpoint bytes per byte of unique text: {overhead[0]:.2f} with 4 agents, {overhead[1]:.2f} with 32"
    )
    assert max(overhead) < 1.6
    assert overhead[1] < overhead[0] * 1.1


def test_the_state_of_a_chat_model_graph_holds_each_answer_once(server: Scripted, tmp_path: Path) -> None:
    server.script = brief
    owner = broadcaster(server)
    path = tmp_path / "talk.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        app = owner.wrap(debate(owner.chat_model, 8, ROUNDS).compile(checkpointer=saver))
        said = app.invoke({"said": []}, thread())["said"]
        stored = app.get_state(thread()).values["said"]
    assert stored == said
    assert last_checkpoint(path) < 1.6 * sum(len(text.encode()) for text in said)
