"""The client side of served benchmarks, against a server that answers at once."""

from __future__ import annotations

import itertools

import pytest
from tokendance_bench import load, systems
from tokendance_bench.instant_server import instant_server, seen
from tokendance_bench.load import Offer
from tokendance_bench.run_synthetic import Shape, synthetic
from tokendance_bench.systems import SYSTEMS

AGENTS, SESSIONS, ROUNDS = 3, 2, 5
WORKLOAD = synthetic(Shape(agents=AGENTS, rounds=4, history=20, block=5))


@pytest.mark.parametrize("rate", [0.0, 200.0])
def test_ordinary_requests_go_member_by_member_and_rounds_as_one(rate: float) -> None:
    with instant_server() as url:
        other = systems.at_url(f"other={url}")
        offer = Offer(rate, ROUNDS, SESSIONS)
        found = load.measure(url, other, "m", WORKLOAD, offer, "a")
        assert len(found) == ROUNDS
        warm = SESSIONS
        assert seen(url)["requests"] == (ROUNDS + warm) * AGENTS
        load.measure(url, SYSTEMS["tokendance-fast"], "m", WORKLOAD, offer, "b")
        assert seen(url)["requests"] == (ROUNDS + warm) * (AGENTS + 1)


def test_latency_counts_from_the_arrival_and_one_session_plays_one_round_at_a_time() -> None:
    with instant_server() as url:
        found = load.measure(url, SYSTEMS["tokendance-fast"], "m", WORKLOAD, Offer(10_000.0, 8, 1), "c")
    assert [each.arrived for each in found] == load.arrivals(10_000.0, 8, 0)
    assert all(a.ended <= b.started for a, b in itertools.pairwise(found))
    assert all(each.latency >= each.ended - each.started for each in found)
    assert load.summary(found)["waited_s"] > 0


def test_a_round_that_the_workload_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: 1 to 3"):
        load.measure("http://nobody/v1", SYSTEMS["vllm"], "m", WORKLOAD, Offer(0.0, 1, 1, first=4), "d")
