"""Gathered calls that fail, come late, or are cancelled: right exceptions, no hang, nothing sent twice."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_server import FakeServer
from openai import APIConnectionError, RateLimitError
from test_joining import AGENTS, both, client, play, rounds, speak
from tokendance_sdk.errors import MemberFailedError, RoundStreamError
from tokendance_sdk.series import RoundSeries


@both
async def test_a_member_that_fails_is_its_own_exception(rounds_server: FakeServer, stream: bool) -> None:
    rounds_server.failing = {"maria": 429}
    async with client(rounds_server) as owner:
        klaus, maria, eve = await play(RoundSeries("sim"), owner, "go", stream=stream)
    assert (klaus, eve) == ("re: go", "re: go")
    assert isinstance(maria, MemberFailedError)
    assert (maria.agent_id, maria.round_id, maria.error.status) == ("maria", "sim:0", 429)


@both
async def test_only_failed_members_are_sent_again(rounds_server: FakeServer, stream: bool) -> None:
    rounds_server.failing, rounds_server.failures_left = {"maria": 500}, 1
    async with client(rounds_server) as owner:
        assert await play(RoundSeries("sim", retry_failed=1), owner, "go", stream=stream) == ["re: go"] * 3
    sent = [(r.round_id, [a.agent_id for a in r.agents]) for r in rounds(rounds_server)]
    assert sent == [("sim:0", AGENTS), ("sim:0", ["maria"])]


@both
async def test_a_refused_round_is_every_members_exception(rounds_server: FakeServer, stream: bool) -> None:
    rounds_server.refuse = [429]
    async with client(rounds_server) as owner:
        answers = await play(RoundSeries(), owner, "go", stream=stream)
    assert all(isinstance(answer, RateLimitError) for answer in answers)
    assert len(rounds_server.seen) == 1


async def test_a_refused_round_is_tried_again_by_the_client(rounds_server: FakeServer) -> None:
    rounds_server.refuse = [429]
    async with client(rounds_server, max_retries=1) as owner:
        assert await play(RoundSeries(), owner, "go") == ["re: go"] * 3
    assert len(rounds_server.seen) == 2


@both
async def test_a_server_that_dies_is_an_error_for_all_and_no_hang(
    rounds_server: FakeServer, stream: bool
) -> None:
    rounds_server.dies = True
    async with client(rounds_server) as owner:
        async with asyncio.timeout(10):
            answers = await play(RoundSeries(), owner, "go", stream=stream)
    kinds = (MemberFailedError, RoundStreamError) if stream else APIConnectionError
    assert all(isinstance(answer, kinds) for answer in answers), answers


async def test_a_malformed_chunk_is_an_error_for_those_that_have_no_answer(rounds_server: FakeServer) -> None:
    rounds_server.break_off_stream = True
    async with client(rounds_server) as owner:
        answers = await play(RoundSeries(), owner, "go", stream=True)
    assert all(isinstance(answer, RoundStreamError) for answer in answers), answers


@both
async def test_a_straggler_is_cut_off_at_the_deadline(rounds_server: FakeServer, stream: bool) -> None:
    rounds_server.slow = {"eve": 30}
    async with client(rounds_server) as owner:
        async with asyncio.timeout(10):
            klaus, maria, eve = await play(RoundSeries(deadline=0.5), owner, "go", stream=stream)
    assert (klaus, maria) == ("re: go", "re: go")
    assert isinstance(eve, MemberFailedError)
    assert eve.error.code == "deadline"


async def test_a_slow_member_does_not_hold_up_anothers_stream(rounds_server: FakeServer) -> None:
    rounds_server.slow = {"eve": 0.5}
    series = RoundSeries()
    ended: dict[str, float] = {}
    async with client(rounds_server) as owner:
        opened = series.open(AGENTS)

        async def one(agent: str) -> None:
            with opened.seat(agent):
                await speak(owner, agent, "go", stream=True)
            ended[agent] = time.monotonic()

        await asyncio.gather(*map(one, AGENTS))
    assert ended["eve"] - ended["klaus"] > 0.2


async def test_one_cancelled_member_leaves_the_others_alone(rounds_server: FakeServer) -> None:
    rounds_server.delay = 0.3
    series = RoundSeries()
    async with client(rounds_server) as owner:
        opened = series.open(AGENTS)

        async def one(agent: str) -> str:
            with opened.seat(agent):
                return await speak(owner, agent, "go")

        tasks = [asyncio.create_task(one(agent)) for agent in AGENTS]
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == ["re: go", "re: go"]


async def test_the_request_is_aborted_when_every_member_is_cancelled(rounds_server: FakeServer) -> None:
    rounds_server.slow = dict.fromkeys(AGENTS, 0.3)
    series = RoundSeries()
    async with client(rounds_server) as owner:
        task = asyncio.create_task(play(series, owner, "go", stream=True))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(rounds_server.aborted.wait, 5)


async def test_a_cancelled_member_of_an_unsent_round_is_not_sent(rounds_server: FakeServer) -> None:
    series = RoundSeries(patience=None)
    async with client(rounds_server) as owner:
        opened = series.open(["klaus", "maria"])

        async def one(agent: str) -> str:
            with opened.seat(agent):
                return await speak(owner, agent, "go")

        gone = asyncio.create_task(one("klaus"))
        await asyncio.sleep(0.05)
        gone.cancel()
        assert await asyncio.wait_for(one("maria"), 5) == "re: go"
    assert [[a.agent_id for a in r.agents] for r in rounds(rounds_server)] == [["maria"]]
