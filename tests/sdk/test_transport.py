"""What the wrapped client does with trouble on the line, nothing listening.

openai 2.x speaks through httpx, which respx mocks; openai 3.x through httpx2, which has a mock transport of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from test_client import both, prompts
from tokendance_sdk.client import AsyncTokenDance, TokenDance
from tokendance_sdk.errors import RoundStreamError, ServerError
from tokendance_sdk.results import RoundResult

NEWEST = int(openai.__version__.split(".")[0]) >= 3
wire: Any = importlib.import_module("httpx2" if NEWEST else "httpx")

BASE = "http://server.test/v1"
ROUNDS, CHAT = f"{BASE}/rounds", f"{BASE}/chat/completions"
STATUS = "http://server.test/tokendance/v1/status"
ARGUMENTS: dict[str, Any] = {"model": "m", "round_id": "sim:1", "agents": prompts()}

Outcome = Any
"""A response, an exception of the line, or a function of the request that gives one of them."""


class Line:
    """A mocked line: each address answers with its outcomes in turn, the last one for ever."""

    def __init__(self, **options: Any) -> None:
        self.options = {"max_retries": 0, **options}
        self.seen: list[Any] = []
        self.answers: dict[str, list[Outcome]] = {}

    def handle(self, request: Any) -> Any:
        self.seen.append(request)
        turns = self.answers[str(request.url)]
        outcome = turns.pop(0) if len(turns) > 1 else turns[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome(request) if callable(outcome) else outcome

    def client(self, kind: str, base: str, **options: Any) -> Any:
        given = {"base_url": base, "api_key": "k", **self.options, **options}
        if NEWEST:
            pool = wire.Client if kind == "sync" else wire.AsyncClient
            given["http_client"] = pool(transport=wire.MockTransport(self.handle))
        return openai.OpenAI(**given) if kind == "sync" else openai.AsyncOpenAI(**given)

    def play(self, kind: str, base: str = BASE, **options: Any) -> RoundResult:
        """`rounds.create` of either client."""
        arguments = {**ARGUMENTS, **options.pop("arguments", {})}
        client = self.client(kind, base, **options)
        if kind == "sync":
            self.owner: Any = TokenDance(client)
            result: RoundResult = self.owner.rounds.create(**arguments)
            return result
        self.owner = AsyncTokenDance(client)

        async def create() -> RoundResult:
            async with client:
                answered: RoundResult = await self.owner.rounds.create(**arguments)
                return answered

        return asyncio.run(create())

    def urls(self) -> list[str]:
        return [str(request.url) for request in self.seen]

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.seen]


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    if NEWEST:
        yield made
        return
    respx: Any = pytest.importorskip("respx")
    with respx.mock:
        respx.route().mock(side_effect=made.handle)
        yield made


def answer(request: Any) -> Any:
    """The round that the request asks for."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    agents = [agent["agent_id"] for agent in json.loads(request.content)["agents"]]
    results = [{"agent_id": who, "index": n, "choices": [choice]} for n, who in enumerate(agents)]
    return wire.Response(200, json={"round_id": "sim:1", "results": results})


def without(*failed: str) -> Callable[[Any], Any]:
    """The same, but these members failed on the server's side."""

    def respond(request: Any) -> Any:
        whole = json.loads(answer(request).content)
        for entry in whole["results"]:
            if entry["agent_id"] in failed:
                del entry["choices"]
                entry["error"] = {"message": "overloaded", "type": "server_error", "code": 503}
        return wire.Response(200, json=whole)

    return respond


def refusal(status: int, said: str = "no", **headers: str) -> Any:
    error = {"message": said, "type": "test_error", "param": None, "code": status}
    return wire.Response(status, json={"error": error}, headers=headers)


@both
def test_the_clients_own_retries_send_the_whole_round_again(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [refusal(503), wire.ConnectError("down"), answer]
    assert len(line.play(kind, max_retries=2).outputs) == 3
    bodies = line.bodies()
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]


@both
def test_a_429_is_the_clients_error_after_its_retries(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [refusal(429, "slow down", **{"retry-after-ms": "1"})]
    with pytest.raises(openai.RateLimitError, match="slow down"):
        line.play(kind, max_retries=2)
    assert line.urls() == [ROUNDS] * 3


@both
@pytest.mark.parametrize("error", ["ConnectError", "ReadError", "RemoteProtocolError"])
def test_a_server_that_is_down_or_dies_is_the_clients_error_and_not_a_plain_server(
    line: Line, kind: str, error: str
) -> None:
    line.answers[ROUNDS] = [getattr(wire, error)("gone")]
    with pytest.raises(openai.APIConnectionError):
        line.play(kind)
    assert line.owner.kind.plain is None
    assert line.urls() == [ROUNDS]


@both
def test_a_member_that_always_fails_is_sent_again_alone_and_so_often(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [without("maria", "eve"), without("maria")]
    result = line.play(kind, arguments={"retry_failed": 3})
    assert list(result.outputs) == ["klaus", "eve"]
    assert result["maria"].error is not None
    assert result["maria"].error.message == "overloaded"
    sent = [[agent["agent_id"] for agent in body["agents"]] for body in line.bodies()]
    assert sent == [["klaus", "maria", "eve"], ["maria", "eve"], ["maria"], ["maria"]]


@both
def test_what_is_answered_is_kept_when_the_server_dies_while_the_rest_is_sent_again(
    line: Line, kind: str
) -> None:
    line.answers[ROUNDS] = [without("maria"), wire.ConnectError("down"), refusal(500)]
    result = line.play(kind, arguments={"retry_failed": 2})
    assert list(result.outputs) == ["klaus", "eve"]
    sent = [[agent["agent_id"] for agent in body["agents"]] for body in line.bodies()]
    assert sent == [["klaus", "maria", "eve"], ["maria"], ["maria"]]


@both
def test_the_raw_answers_come_with_their_headers(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [without("maria"), answer]
    result = line.play(kind, arguments={"retry_failed": 1})
    assert [raw.status for raw in result.raw] == [200, 200]
    assert [len(raw.body["results"]) for raw in result.raw] == [3, 1]
    assert result.raw[0].body["results"][1]["error"]["message"] == "overloaded"
    assert all(raw.headers["content-type"] == "application/json" for raw in result.raw)


@both
def test_a_plain_servers_raw_answers_are_its_completions(line: Line, kind: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    completion = {"id": "c-1", "choices": [choice], "system_fingerprint": "fp"}
    line.answers |= {ROUNDS: [wire.Response(404)], STATUS: [wire.Response(404)]}
    line.answers[CHAT] = [lambda _: wire.Response(200, json=completion, headers={"x-request-id": "r7"})]
    with pytest.warns(UserWarning, match="knows nothing of rounds"):
        result = line.play(kind)
    assert [raw.body for raw in result.raw] == [completion] * 3
    assert {raw.headers["x-request-id"] for raw in result.raw} == {"r7"}


@both
def test_a_refusal_of_the_round_passes_through_with_the_servers_words(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [
        refusal(400, "round_id: header says 'a', body says 'b'; allowed: the same in both")
    ]
    with pytest.raises(openai.BadRequestError, match=r"header says 'a', body says 'b'"):
        line.play(kind)


@both
@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_key_is_not_taken_for_a_plain_server(line: Line, kind: str, status: int) -> None:
    line.answers |= {ROUNDS: [wire.Response(404)], STATUS: [wire.Response(status)]}
    with pytest.raises(openai.APIStatusError):
        line.play(kind)
    assert line.urls() == [ROUNDS, STATUS]


@both
@pytest.mark.parametrize(
    "body", ["<html>hello</html>", '{"object": "list"}', '{"round_id": "r", "results": [1]}']
)
def test_an_answer_that_is_no_round_is_named(line: Line, kind: str, body: str) -> None:
    what = "text/html" if body.startswith("<") else "application/json"
    line.answers[ROUNDS] = [wire.Response(200, text=body, headers={"content-type": what})]
    with pytest.raises(ServerError, match="'sim:1' is not a round"):
        line.play(kind)


def test_a_malformed_chunk_ends_the_stream_and_is_not_asked_for_again(line: Line) -> None:
    done = {
        "agent_id": "klaus",
        "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}],
    }
    events = f"data: {json.dumps(done)}\n\ndata: {{broken\n\ndata: [DONE]\n\n"
    line.answers[ROUNDS] = [wire.Response(200, text=events, headers={"content-type": "text/event-stream"})]
    stream = TokenDance(line.client("sync", BASE)).rounds.stream(**ARGUMENTS)
    with pytest.raises(RoundStreamError, match="broke off"):
        list(stream)
    assert stream.so_far().outputs == {"klaus": "hi"}
    assert line.urls() == [ROUNDS]


@both
def test_a_timeout_of_one_round_is_used(line: Line, kind: str) -> None:
    line.answers[ROUNDS] = [answer]
    line.play(kind, timeout=100.0, arguments={"timeout": 3.5})
    assert line.seen[-1].extensions["timeout"]["read"] == 3.5
    assert "timeout" not in line.bodies()[-1]


@both
def test_an_address_below_a_prefix_is_kept(line: Line, kind: str) -> None:
    below = "http://server.test/llm"
    line.answers = {
        f"{below}/v1/rounds": [wire.Response(404)],
        f"{below}/tokendance/v1/status": [wire.Response(404)],
        f"{below}/v1/chat/completions": [wire.Response(500)],
    }
    with pytest.warns(UserWarning, match="knows nothing of rounds"):
        result = line.play(kind, f"{below}/v1")
    assert {answer.error.status for answer in result if answer.error} == {500}
