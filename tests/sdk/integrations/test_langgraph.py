"""A LangGraph node that runs its agents as one round: a real graph, real checkpoints, real HTTP."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from fake_server import FakeServer
from openai import AsyncOpenAI, OpenAI
from tokendance_sdk.errors import PromptError, RoundFailedError, TokenDanceError
from tokendance_sdk.protocol import ID_PATTERN, ROUNDS_PATH
from tokendance_sdk.rounds_protocol import RoundRequest

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy
from tokendance_sdk.integrations.langgraph import Output, RoundBroadcaster, RoundPlace, keep_once

HISTORIES = {"klaus": "klaus writes.", "maria": "maria plays."}


class State(TypedDict):
    histories: dict[str, Any]
    outputs: Annotated[list[Output], keep_once]
    task: Any
    steps: Annotated[int, operator.add]


class Said(TypedDict):
    outputs: Annotated[list[Output], keep_once]


def start(task: Any = "go", histories: Any = HISTORIES) -> State:
    return {"histories": histories, "outputs": [], "task": task, "steps": 0}


def broadcaster(server: FakeServer, **options: Any) -> RoundBroadcaster:
    return RoundBroadcaster(
        client=OpenAI(base_url=server.base_url, api_key="k", max_retries=0),
        async_client=AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0),
        model="m",
        **options,
    )


def graph(node: Any, rounds: int = 3, saver: Any = None, **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("round", node, **options)
    builder.add_edge(START, "round")
    builder.add_conditional_edges(
        "round", lambda s: "round" if s["outputs"][-1]["round"] + 1 < rounds else END
    )
    return builder.compile(checkpointer=saver)


def requests(server: FakeServer) -> list[RoundRequest]:
    return [RoundRequest.model_validate(body) for body in server.bodies(ROUNDS_PATH)]


def prompt(request: RoundRequest, agent: str) -> list[tuple[str, str]]:
    (found,) = [a for a in request.agents if a.agent_id == agent]
    return [(m["role"], m["content"]) for m in request.chat_body(found, plain=True)["messages"]]


def thread(name: str = "sim") -> Any:
    return {"configurable": {"thread_id": name}}


def test_each_step_is_one_request_named_after_thread_and_step(rounds_server: FakeServer) -> None:
    final = graph(broadcaster(rounds_server).node(), saver=InMemorySaver()).invoke(start(), thread())
    assert rounds_server.paths() == [ROUNDS_PATH] * 3
    assert [(r.round_id, r.session_id) for r in requests(rounds_server)] == [
        (f"sim:{n}", "sim") for n in (1, 2, 3)
    ]
    assert [(o["round"], o["agent"]) for o in final["outputs"]] == [
        (n, who) for n in range(3) for who in ("klaus", "maria")
    ]


def test_an_agent_reads_its_own_past_and_the_last_round_of_all(rounds_server: FakeServer) -> None:
    final = graph(broadcaster(rounds_server).node()).invoke(start({"klaus": "write", "maria": "play"}))
    said = {(o["round"], o["agent"]): o["text"] for o in final["outputs"]}
    assert prompt(requests(rounds_server)[2], "maria") == [
        (
            "user",
            f"maria plays.\n{said[0, 'maria']}\n[klaus]\n{said[1, 'klaus']}\n[maria]\n{said[1, 'maria']}\n\nplay",
        )
    ]


async def test_async_is_the_same(rounds_server: FakeServer) -> None:
    owner = broadcaster(rounds_server)
    assert owner.async_client is not None
    async with owner.async_client.client:
        final = await graph(owner.node(), saver=InMemorySaver()).ainvoke(start(), thread())
    first = rounds_server.bodies(ROUNDS_PATH)
    again = graph(broadcaster(rounds_server).node(), saver=InMemorySaver()).invoke(start(), thread())
    assert final["outputs"] == again["outputs"]
    assert rounds_server.bodies(ROUNDS_PATH)[3:] == first


def test_a_retried_step_keeps_its_round_id_and_adds_nothing_twice(rounds_server: FakeServer) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    policy = RetryPolicy(initial_interval=0.01, max_attempts=3, retry_on=RoundFailedError)
    app = graph(broadcaster(rounds_server).node(), 2, InMemorySaver(), retry_policy=policy)
    final = app.invoke(start(), thread())
    assert [request.round_id for request in requests(rounds_server)] == ["sim:1", "sim:1", "sim:2"]
    assert len(final["outputs"]) == 4


def test_only_the_failed_member_is_sent_again_where_retries_are_the_rounds_own(
    rounds_server: FakeServer,
) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    graph(broadcaster(rounds_server, retry_failed=1).node(), 1, InMemorySaver()).invoke(start(), thread())
    sent = [(r.round_id, [a.agent_id for a in r.agents]) for r in requests(rounds_server)]
    assert sent == [("sim:1", ["klaus", "maria"]), ("sim:1", ["maria"])]


def test_a_failed_member_raises_or_is_skipped(rounds_server: FakeServer) -> None:
    rounds_server.failing = {"maria": 400}
    with pytest.raises(RoundFailedError, match="maria"):
        graph(broadcaster(rounds_server).node(), 1).invoke(start())
    final = graph(broadcaster(rounds_server).node(on_failure="skip"), 1).invoke(start())
    assert [o["agent"] for o in final["outputs"]] == ["klaus"]


def test_resume_on_a_cold_server_goes_on_with_the_same_text_and_ids(
    rounds_server: FakeServer, plain_server: FakeServer
) -> None:
    saver = InMemorySaver()
    whole = graph(broadcaster(rounds_server).node()).invoke(start())
    stopped = graph(broadcaster(rounds_server).node(), 2, saver)
    stopped.invoke(start(), thread())
    plain_server.knows_rounds = True  # another server, which has seen nothing
    resumed = graph(broadcaster(plain_server).node(), 3, saver)
    checkpoint = resumed.update_state(thread(), {"steps": 1}, as_node="round")
    final = resumed.invoke(None, checkpoint)
    assert [o["text"] for o in final["outputs"]] == [o["text"] for o in whole["outputs"]]
    assert [request.round_id for request in requests(plain_server)] == ["sim:4"]


def test_a_replayed_checkpoint_gives_the_same_text_in_the_same_session(rounds_server: FakeServer) -> None:
    app = graph(broadcaster(rounds_server).node(), 2, InMemorySaver())
    final = app.invoke(start(), thread())
    before_second = next(
        s for s in app.get_state_history(thread()) if s.next == ("round",) and s.values["outputs"]
    )
    again = app.invoke(None, before_second.config)
    assert [o["text"] for o in again["outputs"]] == [o["text"] for o in final["outputs"]]
    first, replayed = requests(rounds_server)[1:]
    assert replayed.session_id == first.session_id
    assert replayed.agents == first.agents
    assert replayed.blocks == first.blocks


def test_a_checkpoint_holds_each_output_once(rounds_server: FakeServer) -> None:
    histories = {f"agent{n}": f"agent{n} lives." for n in range(8)}
    app = graph(broadcaster(rounds_server).node(), 3, InMemorySaver())
    app.invoke(start(histories=histories), thread())
    state = app.get_state(thread()).values
    texts = [o["text"] for o in state["outputs"] if o["round"] == 0]
    assert len(texts) == 8
    assert state["histories"] == histories
    for text in texts:
        assert sum(o["text"] == text for o in state["outputs"]) == 1


def test_rounds_of_parallel_subgraphs_have_ids_of_their_own(rounds_server: FakeServer) -> None:
    node = broadcaster(rounds_server).node()
    village = StateGraph(State, output_schema=Said).add_node("round", node).add_edge(START, "round").compile()
    parent = StateGraph(State).add_node("east", village).add_node("west", village)
    app = parent.add_edge(START, "east").add_edge(START, "west").compile(checkpointer=InMemorySaver())
    app.invoke({**start(), "outputs": []}, thread())
    ids = [(request.round_id, request.session_id) for request in requests(rounds_server)]
    assert len(set(ids)) == 2
    assert all(i.startswith("sim:") and ID_PATTERN.fullmatch(i) for pair in ids for i in pair if i)


def test_without_a_thread_runs_share_a_session_but_not_their_rounds(rounds_server: FakeServer) -> None:
    app = graph(broadcaster(rounds_server).node(), 2)
    app.invoke(start())
    app.invoke(start())
    assert len({request.session_id for request in requests(rounds_server)}) == 1
    assert len({request.round_id for request in requests(rounds_server)}) == 4


@pytest.mark.parametrize("name", ["a thread / with ümlauts", "x" * 500, "uuid-4711", ""])
def test_any_thread_id_makes_a_valid_round_id(name: str) -> None:
    config: Any = {"configurable": {"thread_id": name}, "metadata": {"langgraph_step": 12}}
    place = RoundPlace.of(config, HISTORIES)
    assert place == RoundPlace.of(config, {})
    assert ID_PATTERN.fullmatch(place.round_id)
    assert ID_PATTERN.fullmatch(place.session_id)
    assert place.round_id == f"{place.session_id}:12"


def test_langchain_messages_are_a_history_too(rounds_server: FakeServer) -> None:
    histories = {"ann": [SystemMessage("ann rules."), HumanMessage("hello")]}
    graph(broadcaster(rounds_server).node(), 1).invoke(start(histories=histories))
    assert prompt(requests(rounds_server)[0], "ann") == [
        ("system", "ann rules."),
        ("user", "hello"),
        ("user", "go"),
    ]


def test_keep_once_replaces_and_keeps_order() -> None:
    def output(number: int, agent: str, text: str) -> Output:
        return Output(round_id="r", round=number, agent=agent, text=text)

    first = [output(0, "a", "1"), output(0, "b", "2")]
    merged = keep_once(first, [output(0, "a", "new"), output(1, "a", "3")])
    assert [(o["round"], o["agent"], o["text"]) for o in merged] == [
        (0, "a", "new"),
        (0, "b", "2"),
        (1, "a", "3"),
    ]
    assert keep_once(merged, merged) == merged
    assert keep_once(None, None) == []


def test_what_is_missing_is_named(rounds_server: FakeServer) -> None:
    with pytest.raises(PromptError, match="got no client"):
        RoundBroadcaster(model="m")
    with pytest.raises(PromptError, match=r"state has no agents: got histories {}"):
        graph(broadcaster(rounds_server).node(), 1).invoke(start(histories={}))
    only_async = RoundBroadcaster(client=AsyncOpenAI(base_url="http://x/v1", api_key="k"), model="m")
    with pytest.raises(TokenDanceError, match="has an async client only"):
        graph(only_async.node(), 1).invoke(start())


class Diary(TypedDict):
    histories: dict[str, list[str]]
    outputs: list[Output]
    task: str


def moderated(state: Diary, said: list[Output]) -> dict[str, Any]:
    """Keeps each agent's first words as its memory, and lets only klaus be heard, in capitals."""
    number = said[0]["round"]
    heard = [Output(**{**o, "text": o["text"].upper()}) for o in said if o["agent"] == "klaus"]
    memories = {who: [*known, f"day {number}"] for who, known in state["histories"].items()}
    return {"histories": memories, "outputs": heard, "task": f"task {number + 1}"}


def test_an_update_edits_what_is_shared_grows_histories_and_sets_the_task_in_the_same_step(
    rounds_server: FakeServer,
) -> None:
    node = broadcaster(rounds_server).node(update=moderated)
    builder = StateGraph(Diary).add_node("round", node).add_edge(START, "round")
    builder.add_conditional_edges("round", lambda s: "round" if s["outputs"][-1]["round"] < 2 else END)
    begin = {"histories": {"klaus": ["klaus."], "maria": ["maria."]}, "outputs": [], "task": "go"}
    final = builder.compile(checkpointer=InMemorySaver()).invoke(begin, thread())
    assert [request.round_id for request in requests(rounds_server)] == ["sim:1", "sim:2", "sim:3"]
    first, second = ([text for _, text in prompt(requests(rounds_server)[t], "maria")] for t in (0, 1))
    assert first == ["maria.\n\ngo"]
    assert second == ["maria.\nday 0\n[klaus]\nRE: KLAUS.\n\nGO\n\ntask 1"]
    assert [(o["round"], o["agent"]) for o in final["outputs"]] == [(2, "klaus")]
    assert final["histories"]["maria"] == ["maria.", "day 0", "day 1", "day 2"]


def test_on_round_sees_every_result(rounds_server: FakeServer) -> None:
    seen: list[Any] = []
    graph(broadcaster(rounds_server, on_round=seen.append).node(), 2, InMemorySaver()).invoke(
        start(), thread()
    )
    assert [result.round_id for result in seen] == ["sim:1", "sim:2"]
    assert seen[0].report.totals.reused_tokens == 14
