"""Requests that name no round, on a real server with `--tokendance-auto-group`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_server import Answer, Server

pytestmark = pytest.mark.server

TOPICS = {
    "fruit": " ".join(f"Basket {i} holds apples, pears and {i} plums." for i in range(30)),
    "ships": " ".join(f"Ship {i} left the harbour with {i} sails up." for i in range(30)),
}


def ask(server: Server, name: str, topic: str, **fields: Any) -> Answer:
    body = [
        {"role": "system", "content": "You are in a play."},
        {"role": "user", "content": f"<TTSEP>I am {name}.<TTSEP>{TOPICS[topic]}<TTSEP>What do you say?"},
    ]
    return server.request(
        "/v1/chat/completions",
        {"model": "demo", "messages": body, "max_tokens": 6, "temperature": 0, **fields},
    )


def test_two_groups_at_once_are_told_apart_by_their_text(options_server: Server) -> None:
    fast = {"tokendance": {"fidelity": "fast"}}
    with ThreadPoolExecutor(7) as pool:
        busy = pool.submit(options_server.complete, "A long story", max_tokens=200, ignore_eos=True)
        while "num_requests_running" not in (text := options_server.request("/metrics").body) or not _running(
            text
        ):
            pass
        asked = [(topic, n) for n in ("ann", "bob", "cat") for topic in TOPICS]
        answers = list(pool.map(lambda a: ask(options_server, a[1], a[0], **fast), asked))
        assert busy.result().status == 200
    rounds: dict[str, set[str]] = {}
    for (topic, _), answer in zip(asked, answers, strict=True):
        report = answer.body["tokendance"]
        assert report["automatic"]
        assert report["round_id"].startswith("~auto:")
        rounds.setdefault(topic, set()).add(report["round_id"])
        assert report["group_size"] == 3
        assert report["reused_tokens"] > 0
    assert len(rounds["fruit"]) == len(rounds["ships"]) == 1
    assert rounds["fruit"] != rounds["ships"]


def _running(metrics: str) -> bool:
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return any(float(line.rpartition(" ")[2]) > 0 for line in lines)


def test_who_asks_for_nothing_gets_the_exact_answer(options_server: Server) -> None:
    ask(options_server, "dan", "fruit", tokendance={"fidelity": "fast"})
    got = ask(options_server, "eve", "fruit")
    assert got.body["tokendance"]["fallback_reason"] == "exact_requested"
    wanted = ask(options_server, "eve", "fruit", tokendance={"round_id": "named", "fidelity": "exact"})
    assert not wanted.body["tokendance"]["automatic"]
    assert got.body["choices"][0]["message"] == wanted.body["choices"][0]["message"]
    assert got.body["usage"]["prompt_tokens"] == wanted.body["usage"]["prompt_tokens"]


def test_without_separators_a_request_is_vllms_alone(options_server: Server) -> None:
    assert "tokendance" not in options_server.chat("Just a question.").body
