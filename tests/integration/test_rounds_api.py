"""`POST /v1/rounds` on a real server: members go together, fail alone, and end with the connection."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm")

from tokendance_sdk.protocol import MemberReport
from tokendance_sdk.rounds_protocol import RoundResponse
from vllm_server import Server
from wire import SHARED, agent, events, round_body

pytestmark = pytest.mark.server

TAG = {"X-TokenDance-Round-Id": "rounds:after"}


def test_a_round_is_answered_in_order_and_its_members_go_together(server: Server) -> None:
    names = ["maria", "klaus", "ayesha", "latoya"]
    answer = server.request("/v1/rounds", round_body([agent(name) for name in names], "front:r1"))
    assert answer.status == 200
    response = RoundResponse.model_validate(answer.body)
    assert [result.agent_id for result in response.results] == names
    assert [result.index for result in response.results] == [0, 1, 2, 3]
    for result in response.results:
        assert result.tokendance is not None
        assert (result.tokendance.group_size, result.tokendance.role) == (4, "member")
        assert result.tokendance.round_id == "front:r1"
    assert response.tokendance is not None
    assert (response.tokendance.agents, response.tokendance.failed) == (4, 0)
    used = sum((result.usage or {})["prompt_tokens"] for result in response.results)
    assert (response.usage or {})["prompt_tokens"] == used == response.tokendance.prompt_tokens


def test_a_round_gives_each_member_the_answer_of_its_own_chat_request(server: Server) -> None:
    exact = {"fidelity": "exact"}
    answer = server.request("/v1/rounds", round_body([agent("maria"), agent("klaus")], "front:r2", **exact))
    for result in answer.body["results"]:
        text = f"You are {result['agent_id']}.<TTSEP>{SHARED}<TTSEP>What do you say?"
        own = server.chat(
            text, max_tokens=6, tokendance={"round_id": f"front:own-{result['agent_id']}", **exact}
        )
        assert result["choices"][0]["message"]["content"] == own.body["choices"][0]["message"]["content"]


def test_refused_members_have_their_own_error_and_reduce_the_size(server: Server) -> None:
    agents = [
        agent("maria"),
        agent("long", messages=[{"role": "user", "content": "word " * 6000}]),
        agent("many", messages=[{"role": "user", "content": "<TTSEP>" * 4096}]),
        agent("hot", temperature=-3),
        agent("klaus", max_tokens=2),
        agent("typed", max_tokens="many"),
        agent("biased", logit_bias={"99999999": 1}),
    ]
    started = time.monotonic()
    answer = server.request("/v1/rounds", round_body(agents, "front:r3"))
    assert answer.status == 200
    by_name = {result["agent_id"]: result for result in answer.body["results"]}
    for name in ("long", "hot", "typed", "biased"):
        assert by_name[name]["error"]["code"] == 400, name
        assert by_name[name]["error"]["message"]
        assert "choices" not in by_name[name]
    assert by_name["many"]["error"]["code"] == 413
    for name in ("maria", "klaus"):
        assert by_name[name]["tokendance"]["group_size"] == 2, name
        assert by_name[name]["tokendance"]["gather_ms"] < 1000, name
    assert by_name["klaus"]["usage"]["completion_tokens"] == 2
    assert answer.body["tokendance"]["failed"] == 5
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("stream", [False, True])
def test_a_round_in_which_everybody_fails_has_an_error_status(server: Server, stream: bool) -> None:
    agents = [agent("a", temperature=-1), agent("b", temperature=-1)]
    answer = server.request("/v1/rounds", round_body(agents, "front:r4", stream=stream))
    assert answer.status == 400
    assert all("error" in result for result in answer.body["results"])


def test_a_malformed_round_is_one_400(server: Server) -> None:
    answer = server.request("/v1/rounds", round_body([agent("a"), agent("a")], "front:r5"))
    assert answer.status == 400
    assert "agent 'a' is there twice" in answer.body["error"]["message"]


def test_a_streamed_round_interleaves_chunks_and_ends_with_the_report(server: Server) -> None:
    agents = [agent("maria"), agent("bad", temperature=-1), agent("klaus")]
    answer = server.request("/v1/rounds", round_body(agents, "front:r6", stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.body)
    assert found[-1] == ("", "[DONE]")
    name, report = found[-2]
    assert (name, report["round_id"], report["tokendance"]["failed"]) == ("report", "front:r6", 1)
    chunks = [value for _, value in found[:-2]]
    assert [c["error"]["code"] for c in chunks if c["agent_id"] == "bad"] == [400]
    for index, who in ((0, "maria"), (2, "klaus")):
        own = [chunk for chunk in chunks if chunk["agent_id"] == who]
        assert {chunk["index"] for chunk in own} == {index}
        member = MemberReport.model_validate(own[-1]["tokendance"])
        assert (member.agent_id, member.group_size) == (who, 2)
        assert sum("tokendance" in chunk for chunk in own) == 1
        assert own[-1]["choices"][0]["finish_reason"] == "length"


def test_members_of_a_round_may_share_a_request_id_header(server: Server) -> None:
    body = round_body([agent("maria"), agent("klaus")], "front:r7")
    answer = server.request("/v1/rounds", body, {"X-Request-Id": "mine"})
    assert [result["tokendance"]["group_size"] for result in answer.body["results"]] == [2, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_connection_aborts_every_member(server: Server, stream: bool) -> None:
    agents = [agent(name, max_tokens=3000, ignore_eos=True) for name in ("a", "b", "c")]
    body = json.dumps(round_body(agents, f"front:abort-{stream}", stream=stream))
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=60)
    connection.request("POST", "/v1/rounds", body, {"content-type": "application/json"})
    _until(lambda: running_requests(server) == 3)
    connection.sock.close()
    connection.close()
    _until(lambda: running_requests(server) == 0)
    assert server.chat("Hi", TAG).status == 200


def test_rounds_at_the_same_time_keep_apart(server: Server) -> None:
    def one(number: int) -> Any:
        body = round_body([agent("maria"), agent("klaus")], f"front:par-{number}:1")
        return server.request("/v1/rounds", body)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, range(4)))
    for number, answer in enumerate(answers):
        reports = [result["tokendance"] for result in answer.body["results"]]
        assert [report["round_id"] for report in reports] == [f"front:par-{number}:1"] * 2
        assert [report["group_size"] for report in reports] == [2, 2]


def running_requests(server: Server) -> int:
    text = str(server.request("/metrics").body)
    return int(
        sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{.*\} (.*)$", text, re.M))
    )


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
