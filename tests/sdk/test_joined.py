"""What a gathered round asks for, when its members do not all ask alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_server import FakeServer
from pydantic import BaseModel
from test_joining import client, rounds, speak
from tokendance_sdk.series import RoundSeries


async def test_members_of_different_models_are_rounds_of_their_own(rounds_server: FakeServer) -> None:
    series = RoundSeries("sim")
    async with client(rounds_server) as owner:
        opened = series.open(["klaus", "maria"])

        async def one(agent: str) -> None:
            with opened.seat(agent):
                await owner.chat.completions.create(
                    model=f"m-{agent}", messages=[{"role": "user", "content": "go"}]
                )

        await asyncio.gather(one("klaus"), one("maria"))
    assert sorted((r.round_id, r.model) for r in rounds(rounds_server)) == [
        ("sim:0", "m-klaus"),
        ("sim:0.m1", "m-maria"),
    ]


async def test_what_one_member_wants_otherwise_is_its_own(rounds_server: FakeServer) -> None:
    series = RoundSeries()
    async with client(rounds_server) as owner:
        opened = series.open(["klaus", "maria x"])

        async def one(agent: str, **fields: Any) -> None:
            with opened.seat(agent):
                await speak(owner, agent, "go", **fields)

        await asyncio.gather(
            one("klaus", max_tokens=5, extra_body={"tokendance": {"fidelity": "fast"}}),
            one("maria x", max_tokens=6, seed=7),
        )
    (request,) = rounds(rounds_server)
    klaus, maria = request.agents
    assert (klaus.fidelity, klaus.overrides) == ("fast", {"max_tokens": 5})
    assert (maria.agent_id[:2], maria.overrides) == ("a.", {"max_tokens": 6, "seed": 7})
    assert request.defaults == {"temperature": 0}


async def test_structured_output_is_parsed_from_a_members_answer(rounds_server: FakeServer) -> None:
    class Said(BaseModel):
        text: str

    series = RoundSeries()
    async with client(rounds_server) as owner:
        opened = series.open(["klaus"])
        with opened.seat("klaus"), pytest.raises(ValueError, match="re: go"):  # no JSON: the parser saw it
            await owner.chat.completions.parse(
                model="m", messages=[{"role": "user", "content": "go"}], response_format=Said
            )
    assert rounds(rounds_server)[0].defaults["response_format"]["type"] == "json_schema"
