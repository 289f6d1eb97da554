"""`/metrics` of a real server after a round: our families beside vLLM's, in agreement with the members' reports."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("vllm")

from prometheus_client.parser import text_string_to_metric_families
from vllm_server import Server
from wire import agent, round_body

pytestmark = pytest.mark.server

FRUIT = " ".join(f"Basket {i} holds apples, pears and {i} plums." for i in range(30))


def scrape(server: Server) -> dict[tuple[str, str], float]:
    """(sample, own label's value or "") -> value, of our families; all of one engine and model."""
    text = server.request("/metrics").body
    made = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:tokendance_"):
                own = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine", "le")}
                assert sample.labels["engine"] == "0"
                assert len(own) <= 1
                if "le" not in sample.labels:
                    made[sample.name.removeprefix("vllm:tokendance_"), "".join(own.values())] = sample.value
    return made


def test_metrics_agree_with_the_reports_of_a_round(options_server: Server) -> None:
    before = scrape(options_server)
    assert {"reused", "fresh"} <= {label for name, label in before if name == "tokens_total"}
    names = ["maria", "klaus", "ayesha"]
    agents = [
        agent(
            n,
            messages=[{"role": "user", "content": f"You are {n}.<TTSEP>{FRUIT}<TTSEP>What do you say?"}],
        )
        for n in names
    ]
    answer = options_server.request("/v1/rounds", round_body(agents, "metrics:1", fidelity="fast"))
    assert answer.status == 200
    reports = [result["tokendance"] for result in answer.body["results"]]
    assert all(r["reused_tokens"] > 0 for r in reports)
    options_server.chat(
        "Hello.", {"X-TokenDance-Round-Id": "metrics:exact"}, tokendance={"fidelity": "exact"}
    )
    time.sleep(1.1)  # sizes of the store are looked at once a second
    options_server.chat("An ordinary request.")
    now = scrape(options_server)
    after = {each: value - before[each] for each, value in now.items()}
    assert after["group_size_count", ""] == 1  # who asks for exact waits for nobody
    assert after["group_size_sum", ""] == 3
    assert after["gather_seconds_count", ""] == 3
    assert after["restore_seconds_count", ""] >= 1
    assert after["compute_seconds_sum", ""] > 0
    assert after["tokens_total", "reused"] == sum(r["reused_tokens"] for r in reports)
    assert after["tokens_total", "recomputed"] == sum(r["recomputed_tokens"] for r in reports)
    assert after["fallbacks_total", "exact_requested"] == 1
    assert after["fallbacks_total", "alone"] == 0
    assert after["members_total", "shared"] + after["members_total", "copy"] == 3
    assert after["approximate_pages_total", ""] > 0
    assert now["master_bytes", ""] > 0
    assert now["stored_bytes", ""] > 0
    assert now["stored_dense_bytes", ""] > now["stored_bytes", ""], "nothing was shared in the store"


def test_without_the_plugin_there_are_none(plain_server: Server) -> None:
    assert scrape(plain_server) == {}
