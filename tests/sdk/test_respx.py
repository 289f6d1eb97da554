"""What the wrapped client does with trouble on the line (mocked transport; openai 2.x uses httpx)."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from test_client import prompts
from tokendance_sdk.client import TokenDance
from tokendance_sdk.errors import ServerError

if int(openai.__version__.split(".")[0]) >= 3:
    pytest.skip("respx mocks httpx, which openai 3.x does not use", allow_module_level=True)

httpx = pytest.importorskip("httpx")
respx = pytest.importorskip("respx")

BASE = "http://server.test/v1"
ARGUMENTS: dict[str, Any] = {"model": "m", "round_id": "sim:1", "agents": prompts()}


def client(**options: Any) -> TokenDance:
    return TokenDance(openai.OpenAI(base_url=BASE, api_key="k", **options))


def answer() -> Any:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    results = [
        {"agent_id": prompt.agent, "index": n, "choices": [choice]} for n, prompt in enumerate(prompts())
    ]
    return httpx.Response(200, json={"round_id": "sim:1", "results": results})


@respx.mock  # type: ignore[untyped-decorator]
def test_the_clients_own_retries_send_the_whole_round_again() -> None:
    route = respx.post(f"{BASE}/rounds").mock(
        side_effect=[httpx.Response(503), httpx.ConnectError("down"), answer()]
    )
    assert len(client(max_retries=2).rounds.create(**ARGUMENTS).outputs) == 3
    bodies = [json.loads(call.request.content) for call in route.calls]
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]


@respx.mock  # type: ignore[untyped-decorator]
def test_a_server_that_is_down_is_the_clients_error_and_not_a_plain_server() -> None:
    respx.post(f"{BASE}/rounds").mock(side_effect=httpx.ConnectError("down"))
    owner = client(max_retries=0)
    with pytest.raises(openai.APIConnectionError):
        owner.rounds.create(**ARGUMENTS)
    assert owner.kind.plain is None


@respx.mock  # type: ignore[untyped-decorator]
def test_a_refusal_of_the_round_passes_through_with_the_servers_words() -> None:
    said = "round_id: header says 'a', body says 'b'; allowed: the same in both"
    error = {"message": said, "type": "BadRequestError", "param": None, "code": 400}
    respx.post(f"{BASE}/rounds").mock(return_value=httpx.Response(400, json={"error": error}))
    with pytest.raises(openai.BadRequestError, match=r"header says 'a', body says 'b'"):
        client().rounds.create(**ARGUMENTS)


@respx.mock  # type: ignore[untyped-decorator]
@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_key_is_not_taken_for_a_plain_server(status: int) -> None:
    respx.post(f"{BASE}/rounds").mock(return_value=httpx.Response(404))
    respx.get("http://server.test/tokendance/v1/status").mock(return_value=httpx.Response(status))
    chat = respx.post(f"{BASE}/chat/completions").mock(return_value=httpx.Response(200))
    with pytest.raises(openai.APIStatusError):
        client().rounds.create(**ARGUMENTS)
    assert not chat.called


@respx.mock  # type: ignore[untyped-decorator]
@pytest.mark.parametrize(
    "body", ["<html>hello</html>", '{"object": "list"}', '{"round_id": "r", "results": [1]}']
)
def test_an_answer_that_is_no_round_is_named(body: str) -> None:
    kind = "text/html" if body.startswith("<") else "application/json"
    respx.post(f"{BASE}/rounds").mock(
        return_value=httpx.Response(200, text=body, headers={"content-type": kind})
    )
    with pytest.raises(ServerError, match="'sim:1' is not a round"):
        client().rounds.create(**ARGUMENTS)


@respx.mock  # type: ignore[untyped-decorator]
def test_a_timeout_of_one_round_is_used() -> None:
    route = respx.post(f"{BASE}/rounds").mock(return_value=answer())
    client(timeout=100.0).rounds.create(timeout=3.5, **ARGUMENTS)
    assert route.calls.last.request.extensions["timeout"]["read"] == 3.5
    assert "timeout" not in json.loads(route.calls.last.request.content)


@respx.mock  # type: ignore[untyped-decorator]
def test_an_address_below_a_prefix_is_kept() -> None:
    respx.post("http://server.test/llm/v1/rounds").mock(return_value=httpx.Response(404))
    status = respx.get("http://server.test/llm/tokendance/v1/status").mock(return_value=httpx.Response(404))
    respx.post("http://server.test/llm/v1/chat/completions").mock(return_value=httpx.Response(500))
    owner = TokenDance(openai.OpenAI(base_url="http://server.test/llm/v1", api_key="k", max_retries=0))
    with pytest.warns(UserWarning, match="knows nothing of rounds"):
        result = owner.rounds.create(**ARGUMENTS)
    assert status.called
    assert {answer.error.status for answer in result if answer.error} == {500}
