"""Records through vLLM's metrics hooks into a Prometheus registry, and what rounds and stores record."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, out
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from scheduled_rounds import Loop, make_config
from tiny_rounds import private
from tokendance_engine.adapters.vllm.connector import TokenDanceConnector
from tokendance_engine.adapters.vllm.prometheus import TokenDanceProm
from tokendance_engine.adapters.vllm.round_stats import page_bytes
from tokendance_engine.adapters.vllm.store_levels import StoreLevels
from tokendance_engine.observe.metrics import CATALOGUE, Recorder
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

LABELS = {"model_name": "m", "engine": "0"}


class Scraped:
    """Our collectors in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kinds: Any = {k: functools.partial(k, registry=self.registry) for k in (Counter, Gauge, Histogram)}
        config: Any = SimpleNamespace(kv_transfer_config=None)
        self.prom: TokenDanceProm = TokenDanceConnector.build_prom_metrics(
            config, kinds, ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]}
        )

    def value(self, name: str, engine: str = "0", **label: str) -> float | None:
        return self.registry.get_sample_value(
            f"vllm:tokendance_{name}", {**LABELS, "engine": engine, **label}
        )


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    return Scraped()


def test_every_family_and_label_value_is_there_from_the_start(scraped: Scraped) -> None:
    for name, metric in CATALOGUE.items():
        sample = {"counter": "_total", "histogram": "_count", "gauge": ""}[metric.kind]
        for value in metric.values or ("",):
            label = {metric.label: value} if metric.label else {}
            assert scraped.value(name + sample, **label) == 0.0, (name, value)


def test_records_reach_the_collectors_of_their_engine(scraped: Scraped) -> None:
    made = Recorder()
    made.observe("group_size", 3)
    made.count("fallbacks", 2, "alone")
    made.count("approximate_pages", 5)
    made.level("stored_bytes", 100, "worker 0")
    made.level("stored_bytes", 50, "worker 1")
    stats = TokenDanceConnector.build_kv_connector_stats(made.take())
    # As they travel from the engine's process to the API server's.
    data = MsgpackDecoder(dict).decode(MsgpackEncoder().encode(stats.to_dict()))
    scraped.prom.observe(data, 1)
    assert scraped.value("group_size_bucket", "1", le="2.0") == 0
    assert scraped.value("group_size_bucket", "1", le="4.0") == 1
    assert scraped.value("fallbacks_total", "1", reason="alone") == 2
    assert scraped.value("approximate_pages_total", "1") == 5
    assert scraped.value("stored_bytes", "1") == 150
    assert scraped.value("fallbacks_total", "0", reason="alone") == 0
    made.level("stored_bytes", 10, "worker 1")
    scraped.prom.observe(made.take() or {}, 1)
    assert scraped.value("stored_bytes", "1") == 110


def test_stats_merge_reset_and_say_when_they_are_empty() -> None:
    made = Recorder()
    made.count("approximate_pages", 5)
    one = TokenDanceConnector.build_kv_connector_stats(made.take())
    both = one.aggregate(TokenDanceConnector.build_kv_connector_stats({}))
    assert not both.is_empty()
    assert both.data == one.data
    one.reset()
    assert one.is_empty()
    assert not both.is_empty()


def play(loop: Loop, fidelity: Any, n: int = 3) -> list[dict[str, Any]]:
    prompts = [[private(m, 0, 30 + 40 * m), out(0, 90), out(1, 90), MARKER] for m in range(n)]
    requests = [
        loop.add(p, f"a{i}", fidelity=fidelity, round_size=n, placement="copy") for i, p in enumerate(prompts)
    ]
    loop.run()
    return [loop.reports[r.request_id] for r in requests]


def test_a_round_is_counted_as_its_reports_say(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    reports = play(loop, "fast")
    record = loop.side.take_stats()
    assert record is not None
    assert record["observed"]["group_size"] == [3]
    assert len(record["observed"]["gather_seconds"]) == 3
    assert record["observed"]["restore_seconds"] == [0.001]
    assert record["observed"]["compute_seconds"] == [0.002]
    tokens = record["counted"]["tokens"]
    for kind in ("cached", "reused", "recomputed", "fresh"):
        assert tokens.get(kind, 0) == sum(r[f"{kind}_tokens"] for r in reports)
    assert sum(tokens.values()) == sum(r["prompt_tokens"] + r["filler_tokens"] for r in reports)
    assert record["counted"]["members"] == {"copy": 3}
    assert "fallbacks" not in record["counted"]
    # Every page from that of the first reused token on; the last page of a prompt is vLLM's to compute.
    pages = sum(r["reused_tokens"] for r in reports) // 16
    assert pages <= record["counted"]["approximate_pages"][""] <= pages + 3 * 2
    assert record["levels"]["families"] == {"scheduler": 1}
    held = loop.side._families.snapshot()[0]["pages"]
    assert record["levels"]["master_bytes"] == {"scheduler": held * page_bytes(make_config(1))}
    assert loop.side.take_stats() is None


def test_those_who_reuse_nothing_count_by_reason_and_those_who_leave_early_count_no_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    play(loop, "exact")
    gone = loop.add([private(9, 0, 50), out(0, 90), MARKER], "gone", fidelity="fast", round_size=2)
    loop.step()
    loop.side.take_stats()
    loop.abort(gone)
    left = loop.side.take_stats()
    assert left is not None
    assert left["counted"] == {"members": {"none": 1}}


def test_untagged_requests_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.add([private(0, 0, 40), out(0, 90), MARKER], "plain", tagged=False)
    loop.step()
    loop.side.take_stats()  # that there are no families
    loop.run()
    assert loop.side.take_stats() is None


def test_a_store_tells_growth_once_a_second() -> None:
    now = [0.0]
    counts = SimpleNamespace(evicted=1, expired=0)
    tier = SimpleNamespace(hits=2, misses=1, broken={"checksum": 0})
    family = SimpleNamespace(dense_bytes=70)
    report: Any = SimpleNamespace(used=40, families={"a": family, "b": family}, counts=counts, tier=tier)
    levels = StoreLevels(lambda: report, "worker 0", clock=lambda: now[0])
    first = levels.take()
    assert first is not None
    assert first["levels"] == {"stored_bytes": {"worker 0": 40}, "stored_dense_bytes": {"worker 0": 140}}
    assert first["counted"] == {"store_evictions": {"budget": 1}, "tier_lookups": {"hit": 2, "miss": 1}}
    counts.evicted, tier.broken["checksum"] = 4, 2
    assert levels.take() is None
    now[0] = 1.5
    second = levels.take()
    assert second is not None
    assert second["levels"] == {}
    assert second["counted"] == {"store_evictions": {"budget": 3}, "corruptions": {"checksum": 2}}
    now[0] = 3.0
    assert levels.take() is None
