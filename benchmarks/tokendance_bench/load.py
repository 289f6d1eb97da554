"""The client side of a served benchmark: sessions whose rounds arrive at random, as many as a load says.

Rounds arrive as a Poisson process. A session has at most one round under way (its next prompt holds the answers of the
one before), so an arrival takes the session that is free for longest, and waits if none is. Latency counts from the
arrival, waiting included.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openai import AsyncOpenAI
from tokendance_sdk.async_client import AsyncTokenDance
from tokendance_sdk.workload import Workload

from tokendance_bench import stats
from tokendance_bench.systems import System

TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Served:
    """One round as a client saw it.

    Attributes:
        arrived, started, ended: seconds since the first arrival was scheduled; `started` is later than `arrived` where
            no session was free.
        failed: members without an answer.
        tokens: prompt tokens of all members; `computed`: those that went through the model.
    """

    arrived: float
    started: float
    ended: float
    failed: int = 0
    tokens: int = 0
    computed: int = 0

    @property
    def latency(self) -> float:
        """Seconds from the arrival to the last answer."""
        return self.ended - self.arrived


@dataclass(frozen=True, slots=True)
class Offer:
    """What a point offers.

    Attributes:
        rate: rounds per second; 0: one after another, no waiting in between.
        rounds: how many are measured.
        sessions: how many there are; each plays `first`, `first + 1`, ... of the workload over and over.
        first: recorded round that a session's measured rounds start with; the one before warms it up, unmeasured.
        answer_tokens: forced length of the answers.
        seed: of the arrivals: all systems get the same.
    """

    rate: float
    rounds: int
    sessions: int
    first: int = 2
    answer_tokens: int = 32
    seed: int = 0


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds of `count` arrivals of a Poisson process, the first at 0; all 0 if the rate is 0."""
    if rate < 0 or count < 1:
        raise ValueError(f"got rate {rate} and {count} arrivals; allowed: at least 0 and at least 1")
    rng, at, found = random.Random(seed), 0.0, [0.0]
    for _ in range(count - 1):
        at += rng.expovariate(rate) if rate else 0.0
        found.append(at)
    return found


def distinct(workload: Workload, name: str) -> Workload:
    """The workload with all its texts marked by a name: sessions that play the same trace share no cached prefix."""
    mark = f"[{name}] "

    def marked(texts: Any) -> dict[str, str]:
        return {who: mark + text if text else text for who, text in texts.items()}

    return replace(
        workload,
        agents=tuple(replace(a, system=mark + a.system) for a in workload.agents),
        rounds=tuple(replace(r, outputs=marked(r.outputs), own=marked(r.own)) for r in workload.rounds),
    )


class Player:
    """One session of a system's clients."""

    def __init__(
        self, dance: AsyncTokenDance, system: System, model: str, workload: Workload, name: str
    ) -> None:
        self._dance, self._system, self._model, self._name = dance, system, model, name
        self._plain = workload
        self._epoch = 0
        self._workload = distinct(workload, name)

    async def play(self, number: int, answer_tokens: int) -> tuple[int, int, int]:
        """Play a recorded round: (members that failed, prompt tokens, computed tokens)."""
        system = self._system
        prompts = [self._workload.prompt(a, number, layout=system.layout) for a in self._workload.agents]
        fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": answer_tokens, "timeout": TIMEOUT_SECONDS}
        if system.server != "url":
            fields |= {"ignore_eos": True, "min_tokens": answer_tokens}  # vLLM's; others may refuse them
        result = await self._dance.rounds.create(
            model=self._model,
            round_id=f"{self._name}.{self._epoch}:{number}",
            agents=prompts,
            **fields,
            **(system.tag or {}),
        )
        totals = result.report.totals
        return (
            len(result.report.failed),
            totals.prompt_tokens,
            totals.recomputed_tokens + totals.fresh_tokens,
        )

    def again(self) -> None:
        """Start the trace over as a new session, whose texts nothing has cached."""
        self._epoch += 1
        self._workload = distinct(self._plain, f"{self._name}.{self._epoch}")


async def play(
    client: AsyncOpenAI, system: System, model: str, workload: Workload, offer: Offer, prefix: str
) -> list[Served]:
    """Offer rounds to a server; the measured ones in order of their arrival.

    Args:
        prefix: of the sessions' names, another one for every call.
    """
    dance = AsyncTokenDance(client, mode="plain" if system.tag is None else "auto", max_parallel=256)
    last = len(workload.rounds) - 1
    if not 1 <= offer.first <= last:
        raise ValueError(
            f"rounds start at {offer.first}; allowed: 1 to {last}, the last round of the workload"
        )
    free: asyncio.Queue[tuple[Player, int]] = asyncio.Queue()
    for n in range(offer.sessions):
        player = Player(dance, system, model, workload, f"{prefix}-s{n}")
        await player.play(offer.first - 1, offer.answer_tokens)
        free.put_nowait((player, offer.first))
    started = time.monotonic()

    async def one(at: float) -> Served:
        player, number = await free.get()
        if number > last:
            player.again()
            number = offer.first
        begun = time.monotonic() - started
        failed, tokens, computed = await player.play(number, offer.answer_tokens)
        ended = time.monotonic() - started
        free.put_nowait((player, number + 1))
        return Served(at if offer.rate else begun, begun, ended, failed, tokens, computed)

    if not offer.rate:
        return [await one(0.0) for _ in range(offer.rounds)]
    tasks = []
    async with asyncio.TaskGroup() as group:
        for at in arrivals(offer.rate, offer.rounds, offer.seed):
            await asyncio.sleep(max(0.0, at - (time.monotonic() - started)))
            tasks.append(group.create_task(one(at)))
    return [task.result() for task in tasks]


def measure(
    url: str, system: System, model: str, workload: Workload, offer: Offer, prefix: str, api_key: str = "none"
) -> list[Served]:
    """`play` from a program that is not asynchronous."""

    async def run() -> list[Served]:
        client = AsyncOpenAI(base_url=url, api_key=api_key, timeout=TIMEOUT_SECONDS, max_retries=0)
        async with client:
            return await play(client, system, model, workload, offer, prefix)

    return asyncio.run(run())


def summary(served: Sequence[Served], slo: float | None = None) -> dict[str, Any]:
    """Latency, and goodput: rounds per second that were answered whole and within `slo` seconds."""
    latencies = [each.latency for each in served]
    span = max(each.ended for each in served) - min(each.arrived for each in served)
    row: dict[str, Any] = {
        "rounds": len(served),
        "latency_s": round(statistics.median(latencies), 3),
        "latency_p95_s": round(stats.quantile(latencies, 0.95), 3),
        "latency_spread": round(stats.spread(latencies), 3),
        "waited_s": round(statistics.fmean(each.started - each.arrived for each in served), 3),
        "failed": sum(each.failed for each in served),
        "prompt_tokens": sum(each.tokens for each in served),
        "computed_tokens": sum(each.computed for each in served),
    }
    if slo is not None:
        good = sum(not each.failed and each.latency <= slo for each in served)
        row |= {"slo_s": round(slo, 3), "within_slo": good, "goodput_rounds_per_s": round(good / span, 4)}
    return row
