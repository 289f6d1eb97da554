"""Many agents through the SDK alone, and a server that is killed in the middle of a round."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tiny_models import make_tiny_model
from tokendance_sdk import RoundPrompt, TokenDance
from tokendance_sdk.errors import RoundStreamError
from tokendance_sdk.joining import joining
from tokendance_sdk.results import RoundResult
from tokendance_sdk.series import RoundSeries
from vllm_server import SERVED_NAME, Server, running_server

pytestmark = pytest.mark.server

NAMES = [f"agent{n}" for n in range(64)]
NEWS = "The mayor said that the party at the cafe begins at five. " * 6


def check(rounds: list[RoundResult]) -> None:
    """Three whole rounds of everybody, nobody twice, and what all have heard was shared."""
    assert [list(result.outputs) for result in rounds] == [NAMES] * 3
    assert len({result.round_id for result in rounds}) == 3
    assert all(result.report.totals.agents == 64 for result in rounds)
    assert all({m.group_size for m in result.report.members} == {64} for result in rounds)
    assert all(result.report.totals.reused_tokens > 0 for result in rounds[1:])


def test_64_agents_in_3_rounds_of_a_session(tiny_server: Server) -> None:
    session = TokenDance(OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0)).session(
        "scale-session",
        model=SERVED_NAME,
        agents={who: f"You are {who}." for who in NAMES},
        max_tokens=4,
        temperature=0,
        fidelity="fast",
    )
    check([session.round(f"Speak, in round {n}.", timeout=120) for n in range(3)])


async def test_64_agents_in_3_rounds_that_any_framework_runs(tiny_server: Server) -> None:
    rounds: list[RoundResult] = []
    series = RoundSeries("scale-joining", on_round=rounds.append, patience=None, fidelity="fast")
    async with AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as own:
        client = joining(own)

        async def speak(who: str, seat: Any, number: int) -> str:
            with seat:
                texts = [
                    f"In round {number} you are {who}.",
                    NEWS,
                    "What do you do?",
                ]  # the beginning is not cached
                answer = await client.chat.completions.create(
                    model=SERVED_NAME,
                    messages=[{"role": "user", "content": text} for text in texts],
                    max_tokens=4,
                    temperature=0,
                )
            return answer.choices[0].message.content or ""

        for number in range(3):
            opened = series.open(NAMES)
            said = await asyncio.gather(*(speak(who, opened.seat(who), number) for who in NAMES))
            assert said == list(rounds[-1].outputs.values())
            series.advance()
    check(rounds)


def test_a_server_killed_in_the_middle_of_a_round_is_an_error_soon(tmp_path: Path) -> None:
    model = make_tiny_model("llama", tmp_path / "model")
    raised: dict[str, Exception] = {}
    with running_server(model, tmp_path / "server.log", ("--plugin", "tokendance_engine")) as server:
        agents = [RoundPrompt.assemble(who, f"You are {who}.", task=NEWS) for who in NAMES[:8]]
        given: dict[str, Any] = {"model": SERVED_NAME, "agents": agents, "max_tokens": 3500}
        given["extra_body"] = {"ignore_eos": True}
        dance = TokenDance(OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60))

        def wait_for_all() -> None:
            try:
                dance.rounds.create(round_id="killed:0", retry_failed=2, **given)
            except Exception as error:
                raised["whole"] = error

        waiting = threading.Thread(target=wait_for_all)
        waiting.start()
        with dance.rounds.stream(round_id="killed:1", **given) as stream:
            try:
                for event in stream:
                    if event.text and "killed" not in raised:
                        raised["killed"] = ProcessLookupError()
                        killed = time.monotonic()
                        os.killpg(server.pid, signal.SIGKILL)
            except Exception as error:
                raised["streamed"] = error
            seconds = time.monotonic() - killed
            so_far = stream.so_far()
        waiting.join(10)
    assert not waiting.is_alive()
    assert seconds < 10
    assert isinstance(raised["whole"], openai.APIConnectionError)
    assert isinstance(raised["streamed"], RoundStreamError | openai.APIConnectionError)
    assert {answer.error.type for answer in so_far if answer.error} == {"incomplete"}
    assert not so_far.outputs
