"""Three graphs that anybody could have written: what it takes to send them in rounds, and that nothing else changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from example_graphs import EXAMPLES, load
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from scripted_server import CHAT_PATH, Scripted, serving
from tokendance_sdk.integrations.langgraph import RoundBroadcaster
from tokendance_sdk.protocol import ROUNDS_PATH

PATTERNS = ("debate", "mapreduce", "supervisor")
ROUNDS = {"debate": [4, 4, 4], "mapreduce": [4, 4, 1], "supervisor": [1, 3, 1, 3, 1]}


@pytest.fixture
def server() -> Iterator[Scripted]:
    def script(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        return {"content": f"{messages[0]['content'][:40]} and after {len(str(messages))} letters, I agree."}

    with serving(Scripted(script)) as scripted:
        yield scripted


def model(server: Scripted, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.base_url, api_key=SecretStr("k"), model="m", temperature=0, **options)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_three_lines_change(pattern: str) -> None:
    before, after = (
        (EXAMPLES / f"langgraph_{pattern}{suffix}.py").read_text().splitlines()
        for suffix in ("", "_tokendance")
    )
    changed = [line for line in difflib.unified_diff(before, after, n=0) if line[:3] not in ("---", "+++")]
    added = [line for line in changed if line.startswith("+")]
    removed = [line for line in changed if line.startswith("-")]
    assert len(added) == 3, added
    assert len(removed) == 1, removed


@pytest.mark.parametrize("pattern", PATTERNS)
def test_results_are_the_same_and_every_superstep_is_one_round(server: Scripted, pattern: str) -> None:
    before = load(f"langgraph_{pattern}").run(model(server))
    count = len(server.seen)
    after = load(f"langgraph_{pattern}_tokendance").run(model(server))
    assert after == before
    assert {path for path, _, _ in server.seen[:count]} == {CHAT_PATH}
    assert {path for path, _, _ in server.seen[count:]} == {ROUNDS_PATH}
    assert [len(agents) for _, agents in server.rounds()] == ROUNDS[pattern]
    assert all(request.blocks for request in server.requests()[-2:]), "what was said before is shared"


def test_the_models_settings_come_along(server: Scripted) -> None:
    run = load("langgraph_mapreduce_tokendance").run
    run(model(server, max_tokens=17, seed=3, top_p=0.5, extra_body={"fidelity": "exact"}))
    request = server.requests()[1]
    assert request.defaults == {"temperature": 0.0, "max_completion_tokens": 17, "seed": 3, "top_p": 0.5}
    assert request.fidelity == "exact"
    assert request.blocks == {}
    headers = {name.lower(): value for name, value in server.seen[0][1].items()}
    assert headers["authorization"] == "Bearer k"


def test_a_calls_own_limit_replaces_the_models(server: Scripted) -> None:
    broadcaster = RoundBroadcaster.from_model(model(server, max_tokens=17))
    broadcaster.chat_model.bind(max_tokens=5).invoke("short")
    assert server.requests()[0].agents[0].overrides == {"max_completion_tokens": 5}
