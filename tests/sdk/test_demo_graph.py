"""The demo's LangGraph graph: the same rounds as a replay sends, one superstep each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_server import CHAT_PATH, FakeServer
from openai import AsyncOpenAI
from tokendance_sdk.layout import Layout
from tokendance_sdk.protocol import ROUNDS_PATH
from tokendance_sdk.replay import Replay, ReplayError, Settings, replay
from tokendance_sdk.workload import Workload, load_workload
from tokendance_sdk.workload_cut import Cut, cut

pytest.importorskip("langgraph")

from tokendance_sdk.demo_graph import beginning, play_graph


@pytest.fixture
def story() -> Workload:
    return cut(load_workload("ga-ville3-valentine"), Cut(rounds=4))


async def played(player: Any, server: FakeServer, story: Workload, how: Settings) -> Replay:
    async with AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        return await player(client, story, how, model="m")


def without_names(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in body.items() if k not in ("round_id", "session_id")} for body in bodies]


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.self_last(), Layout.shared_first()])
async def test_a_graph_sends_what_a_replay_sends(
    rounds_server: FakeServer, story: Workload, layout: Layout
) -> None:
    how = Settings(layout=layout, force_length=True)
    await played(replay, rounds_server, story, how)
    await played(play_graph, rounds_server, story, how)
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert len(bodies) == 8
    assert without_names(bodies[4:]) == without_names(bodies[:4])
    assert rounds_server.paths().count(ROUNDS_PATH) == 8


async def test_each_superstep_is_a_round_of_one_session(rounds_server: FakeServer, story: Workload) -> None:
    await played(play_graph, rounds_server, story, Settings())
    ids = [body["round_id"] for body in rounds_server.bodies(ROUNDS_PATH)]
    assert [round_id.rpartition(":")[2] for round_id in ids] == ["1", "2", "3", "4"]
    assert len({round_id.rpartition(":")[0] for round_id in ids}) == 1


async def test_rows_are_those_of_a_replay(rounds_server: FakeServer, story: Workload) -> None:
    both = [await played(player, rounds_server, story, Settings()) for player in (replay, play_graph)]
    timeless = [[replace(row, wall_ms=0.0) for row in each.rows] for each in both]
    assert timeless[0] == timeless[1]
    assert [each.through for each in both] == ["the SDK", "LangGraph"]
    assert replace(both[0], rows=(), through="") == replace(both[1], rows=(), through="")


@pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")
async def test_a_plain_server_plays_the_same_graph(plain_server: FakeServer, story: Workload) -> None:
    found = await played(play_graph, plain_server, story, Settings())
    assert found.plain
    assert [row.index for row in found.rows] == [0, 1, 2, 3]
    assert len(plain_server.bodies(CHAT_PATH)) == 12


async def test_a_member_without_an_answer_is_in_its_row_and_the_story_goes_on(
    rounds_server: FakeServer, story: Workload
) -> None:
    rounds_server.failing = {"Maria_Lopez": 500}
    found = await played(play_graph, rounds_server, story, Settings())
    assert [list(row.failed) for row in found.rows] == [["Maria_Lopez"]] * 4
    assert len(rounds_server.bodies(ROUNDS_PATH)[1]["blocks"]) == 6  # three outputs, three labels


async def test_a_transcript_context_is_refused(rounds_server: FakeServer, story: Workload) -> None:
    with pytest.raises(ReplayError, match=r"context is 'transcript'; allowed in a graph: 'window'"):
        await played(play_graph, rounds_server, story, Settings(context="transcript"))
    assert rounds_server.paths() == []


def test_it_begins_with_private_histories_only(story: Workload) -> None:
    state = beginning(story)
    assert list(state["histories"]) == ["Isabella_Rodriguez", "Maria_Lopez", "Klaus_Mueller"]
    assert state["outputs"] == []
    assert state["histories"]["Maria_Lopez"][0] == {"role": "system", "content": story.agents[1].system}
