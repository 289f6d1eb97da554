"""AutoGen teams whose participants, server or caller let them down."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_server import FakeServer
from openai import APIConnectionError, RateLimitError
from tokendance_sdk.errors import MemberFailedError

pytest.importorskip("autogen_agentchat", reason="AutoGen cannot be installed beside LMCache: make test-sdk")

from autogen_core import CancellationToken
from test_autogen import NAMES, both, requests, team, texts


async def test_a_failing_participant_ends_the_run_and_only_it_is_asked_again(
    rounds_server: FakeServer,
) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    chat = team(rounds_server, 1)
    with pytest.raises(RuntimeError, match="maria") as caught:
        await chat.run(task="go")
    assert isinstance(caught.value.__cause__, MemberFailedError)
    assert caught.value.__cause__.error.status == 500
    await chat.run()
    sent = [(r.round_id, [a.agent_id for a in r.agents]) for r in requests(rounds_server)]
    assert sent == [("sim:0", list(NAMES)), ("sim:0", ["maria"])]
    assert texts(requests(rounds_server)[0], "maria") == texts(requests(rounds_server)[1], "maria")


async def test_what_was_answered_before_a_failure_survives_saving(rounds_server: FakeServer) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    chat = team(rounds_server, 2)
    with pytest.raises(RuntimeError, match="maria"):
        await chat.run(task="go")
    again = team(rounds_server, 2, session_id=None)
    await again.load_state(json.loads(json.dumps(await chat.save_state())))
    await again.run()
    sent = [(r.round_id, [a.agent_id for a in r.agents]) for r in requests(rounds_server)]
    assert sent[1:] == [("sim:0", ["maria"]), ("sim:1", list(NAMES))]


async def test_a_skipped_participant_says_nothing_and_goes_on_hearing(rounds_server: FakeServer) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 400}, 1
    result = await team(rounds_server, 2, on_failure="skip").run(task="go")
    assert [m.source for m in result.messages[1:]].count("maria") == 1
    assert texts(requests(rounds_server)[1], "maria")[1:] == [
        ("user", "go"),
        ("user", "re: go"),
        ("user", "re: go"),
    ]


async def test_a_member_that_always_fails_is_retried_alone_and_then_given_up(
    rounds_server: FakeServer,
) -> None:
    rounds_server.failing = {"maria": 500}
    result = await team(rounds_server, 1, on_failure="skip", retry_failed=2).run(task="go")
    assert [[a.agent_id for a in r.agents] for r in requests(rounds_server)] == [
        list(NAMES),
        ["maria"],
        ["maria"],
    ]
    assert {m.source for m in result.messages} == {"user", "klaus", "eve"}


async def test_all_failing_ends_the_run_even_where_failures_are_skipped(rounds_server: FakeServer) -> None:
    rounds_server.refuse = [429]
    with pytest.raises(RuntimeError, match="429") as caught:
        await team(rounds_server, on_failure="skip").run(task="go")
    assert isinstance(caught.value.__cause__, RateLimitError)


@both
async def test_a_dying_server_is_an_error_and_no_hang(rounds_server: FakeServer, stream: bool) -> None:
    rounds_server.dies = True
    chat = team(rounds_server, stream=stream)
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError) as caught:
            await chat.run(task="go")
    if not stream:
        assert isinstance(caught.value.__cause__, APIConnectionError)
    rounds_server.dies = False
    async with asyncio.timeout(20):
        assert len((await chat.run()).messages) == 3 * 3


async def test_a_straggler_is_cut_off(rounds_server: FakeServer) -> None:
    rounds_server.slow = {"eve": 30}
    async with asyncio.timeout(20):
        result = await team(rounds_server, 1, deadline=0.5, on_failure="skip").run(task="go")
    assert {m.source for m in result.messages} == {"user", "klaus", "maria"}


async def test_a_cancelled_run_ends_and_the_team_can_run_again(rounds_server: FakeServer) -> None:
    rounds_server.delay = 0.5
    chat = team(rounds_server, 1)
    token = CancellationToken()
    run = asyncio.create_task(chat.run(task="go", cancellation_token=token))
    await asyncio.sleep(0.25)
    token.cancel()
    async with asyncio.timeout(20):
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await run
    rounds_server.delay = 0
    async with asyncio.timeout(20):
        result = await chat.run()
    assert {m.source for m in result.messages} == set(NAMES)
    assert requests(rounds_server)[-1].round_id == "sim:0"
