"""Progress of a round, as its members' answers end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_server import FakeServer
from test_client import both, run, sync, twin
from tokendance_sdk.progress import RoundProgress
from tokendance_sdk.results import RoundResult

pytestmark = pytest.mark.filterwarnings("ignore::tokendance_sdk.wire.PlainServerWarning")


def play(server: FakeServer, kind: str, **options: Any) -> RoundResult:
    result: RoundResult = run(server, kind, **options)
    return result


@both
@pytest.mark.parametrize("knows_rounds", [True, False])
def test_it_is_called_when_sent_for_each_member_and_at_the_end(
    rounds_server: FakeServer, plain_server: FakeServer, kind: str, knows_rounds: bool
) -> None:
    server = rounds_server if knows_rounds else plain_server
    server.slow = {"klaus": 0.2}
    seen: list[RoundProgress] = []
    result = play(server, kind, progress=seen.append)
    assert [(p.done, p.failed, p.finished) for p in seen] == [
        (0, 0, False),
        (1, 0, False),
        (2, 0, False),
        (3, 0, False),
        (3, 0, True),
    ]
    assert [p.agent_id for p in seen][3:] == ["klaus", None]
    assert {p.agents for p in seen} == {3}
    assert [p.elapsed_ms for p in seen] == sorted(p.elapsed_ms for p in seen)
    assert result.outputs == play(server, kind).outputs


@both
def test_failures_are_counted(rounds_server: FakeServer, kind: str) -> None:
    rounds_server.failing = {"maria": 400}
    seen: list[RoundProgress] = []
    play(rounds_server, kind, progress=seen.append)
    assert (seen[-1].done, seen[-1].failed) == (3, 1)


@both
def test_a_session_reports_each_of_its_rounds(rounds_server: FakeServer, kind: str) -> None:
    seen: list[RoundProgress] = []
    agents = {"klaus": "klaus writes.", "maria": "maria plays."}
    if kind == "sync":
        session = sync(rounds_server).session("sim", model="m", agents=agents, progress=seen.append)
        for _ in range(2):
            session.round("go")
    else:

        async def rounds() -> None:
            owner = twin(rounds_server)
            async with owner.client:
                own = owner.session("sim", model="m", agents=agents, progress=seen.append)
                for _ in range(2):
                    await own.round("go")

        asyncio.run(rounds())
    assert [p.round_id for p in seen if p.finished] == ["sim:0", "sim:1"]


@both
def test_what_it_raises_ends_the_round(rounds_server: FakeServer, kind: str) -> None:
    def stop(progress: RoundProgress) -> None:
        if progress.done:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        play(rounds_server, kind, progress=stop)
