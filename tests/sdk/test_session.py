"""Rounds that follow one another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_server import FakeServer
from test_client import both, sync, twin
from tokendance_sdk.errors import PromptError, RoundFailedError
from tokendance_sdk.protocol import ROUNDS_PATH, SEPARATOR
from tokendance_sdk.rounds_protocol import RoundRequest

AGENTS = {"klaus": "klaus writes.", "maria": "maria plays."}


def play(server: FakeServer, kind: str, rounds: int, **options: Any) -> list[dict[str, str]]:
    """Outputs of each round."""
    if kind == "sync":
        owner = sync(server)
        with owner.client:
            session = owner.session("sim", model="m", agents=AGENTS, **options)
            return [session.round(f"task {n}").outputs for n in range(rounds)]

    async def read() -> list[dict[str, str]]:
        owner = twin(server)
        async with owner.client:
            session = owner.session("sim", model="m", agents=AGENTS, **options)
            return [(await session.round(f"task {n}")).outputs for n in range(rounds)]

    return asyncio.run(read())


def prompts(server: FakeServer, number: int) -> dict[str, list[tuple[str, str]]]:
    """Agent -> (role, text) of its prompt in that round, as the model sees it."""
    request = RoundRequest.model_validate(server.bodies(ROUNDS_PATH)[number])
    return {
        agent.agent_id: [(m["role"], m["content"]) for m in request.chat_body(agent, plain=True)["messages"]]
        for agent in request.agents
    }


@both
def test_round_ids_count_and_the_session_is_named(rounds_server: FakeServer, kind: str) -> None:
    play(rounds_server, kind, 3, temperature=0)
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert [(b["round_id"], b["session_id"], b["temperature"]) for b in bodies] == [
        ("sim:0", "sim", 0),
        ("sim:1", "sim", 0),
        ("sim:2", "sim", 0),
    ]


@both
def test_a_window_keeps_the_own_outputs_and_shares_the_last_round(
    rounds_server: FakeServer, kind: str
) -> None:
    first, second, _ = play(rounds_server, kind, 3)
    assert prompts(rounds_server, 2)["maria"] == [
        ("user", "maria plays.\n\ntask 0"),
        ("assistant", first["maria"]),
        ("user", "task 1"),
        ("assistant", second["maria"]),
        ("user", f"\n[klaus]\n{second['klaus']}\n[maria]\n{second['maria']}\n\ntask 2"),
    ]


@both
def test_a_transcript_keeps_what_everybody_said(rounds_server: FakeServer, kind: str) -> None:
    first, second, _ = play(rounds_server, kind, 3, context="transcript")
    assert prompts(rounds_server, 2)["maria"] == [
        ("user", "maria plays.\n\ntask 0"),
        ("assistant", first["maria"]),
        ("user", f"\n[klaus]\n{first['klaus']}\n[maria]\n{first['maria']}\n\ntask 1"),
        ("assistant", second["maria"]),
        ("user", f"\n[klaus]\n{second['klaus']}\n[maria]\n{second['maria']}\n\ntask 2"),
    ]


@pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")
def test_a_separator_that_a_model_wrote_is_no_boundary_in_the_next_round(
    rounds_server: FakeServer, plain_server: FakeServer
) -> None:
    outputs = []
    for server in (rounds_server, plain_server):
        session = sync(server).session("sim", model="m", agents=AGENTS)
        session.round(f"say {SEPARATOR} twice: {SEPARATOR}")  # the fake model repeats what it is told
        outputs.append(session.round("go").outputs)
        assert outputs[-1]["klaus"].count(SEPARATOR) == 4
    assert outputs[0] == outputs[1]
    second = RoundRequest.model_validate(rounds_server.bodies(ROUNDS_PATH)[1])
    for agent in second.agents:
        last = second.chat_body(agent)["messages"][-1]["content"]
        assert len(last.split(SEPARATOR)) == 6  # an empty head, two labels, two outputs, the task


def test_private_text_is_its_agents_alone_and_stays(rounds_server: FakeServer) -> None:
    session = sync(rounds_server).session("sim", model="m", agents=AGENTS)
    session.round("go", private={"maria": "a secret"})
    session.round("go")
    for number in (0, 1):
        seen = prompts(rounds_server, number)
        assert "maria plays.\na secret" in seen["maria"][0][1]
        # maria's fake answer quotes her prompt, so look at what klaus was told before he heard it
        assert "a secret" not in seen["klaus"][0][1]


def test_a_round_that_raises_leaves_the_session_as_it_was(rounds_server: FakeServer) -> None:
    session = sync(rounds_server).session("sim", model="m", agents=AGENTS, raise_on_error=True)
    session.round("go")
    before = dict(session.state.histories)
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    with pytest.raises(RoundFailedError):
        session.round("go")
    assert (session.state.round, session.state.histories) == (1, before)
    session.round("go")
    bodies = rounds_server.bodies(ROUNDS_PATH)
    assert bodies[1] == bodies[2]
    assert session.state.round == 2


def test_a_member_that_failed_said_nothing(rounds_server: FakeServer) -> None:
    session = sync(rounds_server).session("sim", model="m", agents=AGENTS)
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    session.round("one")
    session.round("two")
    assert [b.owner for b in session.state.shared] == ["klaus", "maria"]
    assert "[maria]" not in prompts(rounds_server, 1)["klaus"][-1][1]
    assert prompts(rounds_server, 1)["maria"][0][1].startswith("maria plays.\n[klaus]\n")


def test_agents_without_any_history_or_task(rounds_server: FakeServer) -> None:
    session = sync(rounds_server).session("sim", model="m", agents={"ann": [], "bob": []})
    with pytest.raises(PromptError, match="'ann' is empty"):
        session.round()
    session.round("hello")
    session.round()
    session.round()
    assert session.state.round == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": "all"}, "got context 'all'; allowed: window, transcript"),
        ({"agents": {}}, "no agents"),
        ({"agents": {"ann": {"role": "user"}}}, "history of agent 'ann' is dict; allowed: text, or a list"),
    ],
)
def test_a_session_is_checked_when_it_is_opened(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PromptError, match=said):
        sync(FakeServer(base_url="http://x/v1")).session("sim", **{"model": "m", "agents": AGENTS, **options})


def test_a_task_for_a_stranger_is_refused(rounds_server: FakeServer) -> None:
    session = sync(rounds_server).session("sim", model="m", agents=AGENTS)
    with pytest.raises(PromptError, match="task for unknown agent 'eve'; agents: klaus, maria"):
        session.round({"eve": "go"})
