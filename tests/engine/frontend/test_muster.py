"""The members of a round go together, and know how many they are."""

from __future__ import annotations

import asyncio

import pytest
from tokendance_engine.frontend.muster import Muster


async def test_everybody_waits_for_the_last_and_learns_the_number() -> None:
    muster = Muster(3)
    first = [asyncio.create_task(muster.arrive(index)) for index in (0, 2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in first)
    assert await muster.arrive(1) == 3
    assert await asyncio.gather(*first) == [3, 3]


async def test_a_refused_member_reduces_the_number_and_holds_nobody_up() -> None:
    muster = Muster(3)
    waiting = [asyncio.create_task(muster.arrive(index)) for index in (0, 1)]
    await asyncio.sleep(0)
    muster.drop(2)
    assert await asyncio.gather(*waiting) == [2, 2]


async def test_dropping_after_arrival_or_twice_changes_nothing() -> None:
    muster = Muster(2)
    muster.drop(1)
    muster.drop(1)
    assert await muster.arrive(0) == 1
    muster.drop(0)
    assert await muster.arrive(0) == 1


async def test_a_member_cancelled_while_it_waits_does_not_count() -> None:
    muster = Muster(3)
    gone, stays = (asyncio.create_task(muster.arrive(index)) for index in (0, 1))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await muster.arrive(2) == 2
    assert await stays == 2
