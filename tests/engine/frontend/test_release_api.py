"""`POST /tokendance/v1/release` without an engine behind it: what it asks the workers, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from tokendance_engine.frontend.release_api import release_router
from tokendance_sdk.protocol import RELEASE_PATH


class Client:
    """An engine whose second worker held the session."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    async def collective_rpc(self, method: str, args: Any = ()) -> list[bool]:
        self.asked.append((method, args))
        return [False, True]


@pytest.fixture
def served() -> tuple[TestClient, Client]:
    app, client = FastAPI(), Client()
    app.include_router(release_router())
    app.state.engine_client, app.state.args = client, SimpleNamespace(api_key=["secret"])
    return TestClient(app, headers={"Authorization": "Bearer secret"}), client


def test_every_worker_is_told_whose_session_it_is(served: tuple[TestClient, Client]) -> None:
    http, client = served
    answer = http.post(RELEASE_PATH, json={"session_id": "sim-7", "cache_salt": "tenant"})
    assert (answer.status_code, answer.json()) == (200, {"session_id": "sim-7", "released": True})
    http.post(RELEASE_PATH, json={"session_id": "sim-7"})
    assert client.asked == [
        ("tokendance_release", ("tenant", "sim-7")),
        ("tokendance_release", ("", "sim-7")),
    ]


@pytest.mark.parametrize(
    "body", [b"no json", b"{}", b'{"session_id": "not an id"}', b'{"session_id": "x", "y": 1}']
)
def test_a_wrong_body_is_refused_and_nobody_is_asked(served: tuple[TestClient, Client], body: bytes) -> None:
    http, client = served
    assert http.post(RELEASE_PATH, content=body).status_code == 400
    assert not client.asked


def test_a_request_without_the_servers_key_is_refused(served: tuple[TestClient, Client]) -> None:
    http, client = served
    assert (
        http.post(RELEASE_PATH, json={"session_id": "x"}, headers={"Authorization": "no"}).status_code == 401
    )
    assert not client.asked
