"""LangGraph graphs against a real vLLM: the same as without TokenDance at `exact`, reuse where that is allowed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from vllm_server import SERVED_NAME, Server

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from example_graphs import load
from langchain_core.callbacks import BaseCallbackHandler
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr
from tokendance_sdk.integrations.langgraph import RoundBroadcaster
from tokendance_sdk.protocol import SEPARATOR
from tokendance_sdk.results import RoundResult

pytestmark = pytest.mark.server


def model(server: Server, **options: Any) -> ChatOpenAI:
    given = {"max_tokens": 24, **options}
    key = SecretStr("none")
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key=key, model=SERVED_NAME, temperature=0, **given)


class Reports(BaseCallbackHandler):
    """The report of every call."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.all.append(response.generations[0][0].message.response_metadata["tokendance"])


@pytest.mark.parametrize(
    ("pattern", "length"), [("debate", {"turns": 2}), ("mapreduce", {}), ("supervisor", {"turns": 2})]
)
def test_a_graph_written_with_chat_openai_gives_the_same_results_in_rounds(
    server: Server, pattern: str, length: dict[str, int]
) -> None:
    before = load(f"langgraph_{pattern}").run(model(server), **length)
    reports = Reports()
    exact = model(server, extra_body={"fidelity": "exact"})
    after = load(f"langgraph_{pattern}_tokendance").run(exact, config={"callbacks": [reports]}, **length)
    assert after == before
    assert len(reports.all) == len(after)
    assert max(Counter(report["round_id"] for report in reports.all).values()) >= 3
    assert not any(report["reused_tokens"] or report["approximate_cached_tokens"] for report in reports.all)


@pytest.mark.parametrize(
    ("pattern", "fidelity", "length"),
    [
        ("debate", "balanced", {"turns": 2}),
        ("debate", "fast", {"turns": 2}),
        ("mapreduce", "fast", {}),
        ("supervisor", "fast", {"turns": 2}),
    ],
)
def test_reuse_is_visible_in_the_reports(
    tiny_server: Server, pattern: str, fidelity: str, length: dict[str, int]
) -> None:
    reports = Reports()
    # Long enough answers: the beginning of each block is computed again.
    llm = model(tiny_server, max_tokens=96, extra_body={"fidelity": fidelity})
    texts = load(f"langgraph_{pattern}_tokendance").run(llm, config={"callbacks": [reports]}, **length)
    assert all(text and SEPARATOR not in text for text in texts)
    reused = sum(report["reused_tokens"] for report in reports.all)
    print(
        f"{pattern} at {fidelity}: {reused} of {sum(r['prompt_tokens'] for r in reports.all)} tokens reused"
    )
    assert reused > 0
    for report in reports.all:
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert sum(report[name] for name in parts) == report["prompt_tokens"] + report["filler_tokens"]


def test_streamed_members_say_the_same_and_carry_their_nodes_metadata(server: Server) -> None:
    debate = load("langgraph_debate")
    broadcaster = RoundBroadcaster.from_model(model(server), fidelity="exact")
    app = broadcaster.wrap(debate.debate(broadcaster.chat_model, 2).compile(checkpointer=InMemorySaver()))
    begin = {"question": "Should our town build a dam?", "turn": 0, "speeches": []}
    whole = app.invoke(begin, {"configurable": {"thread_id": "whole"}})["speeches"]
    pieces: dict[str, str] = {}
    nodes: Counter[str] = Counter()
    config = {"configurable": {"thread_id": "streamed"}}
    for chunk, metadata in app.stream(begin, config, stream_mode="messages"):
        pieces[chunk.id] = pieces.get(chunk.id, "") + chunk.text
        nodes[metadata["langgraph_node"]] += 1
    assert sorted(pieces.values()) == sorted(whole)
    assert set(nodes) == set(debate.DEBATERS)
    assert min(nodes.values()) > 10


async def test_64_agents_in_3_rounds_lose_and_double_nothing(tiny_server: Server) -> None:
    import asyncio

    from langgraph.graph import END, START, StateGraph

    seen: list[RoundResult] = []
    broadcaster = RoundBroadcaster.from_model(
        model(tiny_server, max_tokens=4), window=2.0, on_round=seen.append
    )
    llm = broadcaster.chat_model
    names = [f"agent{n}" for n in range(64)]

    async def crowd(state: dict[str, Any]) -> dict[str, Any]:
        heard = "\n".join(state["said"][:4])
        asked = [
            llm.bind(agent_id=name).ainvoke(f"{name}, you hear:\n{heard}\nSay a word.") for name in names
        ]
        return {"said": [answer.text for answer in await asyncio.gather(*asked)], "turn": state["turn"] + 1}

    builder = StateGraph(dict)
    builder.add_node("crowd", crowd)
    builder.add_edge(START, "crowd")
    builder.add_conditional_edges("crowd", lambda state: "crowd" if state["turn"] < 3 else END)
    final = await broadcaster.wrap(builder.compile()).ainvoke({"said": [], "turn": 0})
    assert len(final["said"]) == 64
    assert [len(result.results) for result in seen] == [64] * 3
    assert all(sorted(result.outputs) == sorted(names) for result in seen)
