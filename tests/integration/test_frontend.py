"""Tags, separators and rounds on a real server."""

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
from vllm_server import SERVED_NAME, Server

pytestmark = pytest.mark.server

SHARED = "Isabella: I am planning a Valentine's party at Hobbs Cafe on the fourteenth at five. " * 8
TAG = {"X-TokenDance-Round-Id": "front:1"}
NEVER = ("TTSEP", "\u2060")


def agent(name: str, **fields: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": f"You are {name}."},
        {"type": "block", "ref": "o:isabella"},
        {"type": "text", "text": "What do you say?"},
    ]
    return {"agent_id": name, "messages": [{"role": "user", "content": content}], **fields}


def round_body(agents: list[dict[str, Any]], round_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "round_id": round_id,
        "blocks": {"o:isabella": SHARED},
        "agents": agents,
        "max_tokens": 6,
        "temperature": 0,
        **fields,
    }


def token_ids(server: Server, text: str) -> list[int]:
    body = {"model": SERVED_NAME, "prompt": text, "add_special_tokens": False}
    return list(server.request("/tokenize", body).body["tokens"])


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for event in filter(None, text.split("\n\n")):
        name = re.search(r"^event: (.*)$", event, re.M)
        data = re.search(r"^data: (.*)$", event, re.M)
        if data:
            value = data[1] if data[1] == "[DONE]" else json.loads(data[1])
            found.append((name[1] if name else "", value))
    return found


def test_a_tagged_prompt_is_its_segments_tokenized_one_by_one(server: Server) -> None:
    segments = ["I am Klaus.", SHARED, "", "\nWhat now?"]
    answer = server.complete("<TTSEP>".join(segments), TAG, return_token_ids=True)
    expected = [token for text in segments for token in token_ids(server, text)]
    assert answer.body["choices"][0]["prompt_token_ids"] == expected
    assert answer.body["usage"]["prompt_tokens"] == len(expected)


def test_the_separator_is_in_nothing_that_comes_back(server: Server) -> None:
    wire = f"I am Klaus.<TTSEP>{SHARED}<TTSEP>What now?"
    full = server.complete(wire, TAG, echo=True, logprobs=1)
    choice = full.body["choices"][0]
    assert choice["text"].startswith(wire.replace("<TTSEP>", ""))
    assert len(choice["logprobs"]["tokens"]) == full.body["usage"]["total_tokens"]
    stream = server.chat(wire, TAG, stream=True, logprobs=True, stream_options={"include_usage": True})
    for text in (json.dumps(full.body), stream.body):
        assert not any(word in text for word in NEVER)


def test_a_literal_separator_in_a_tagged_prompt_round_trips(server: Server) -> None:
    answer = server.complete("a<\u2060TTSEP>b<TTSEP>c", TAG, echo=True)
    assert answer.body["choices"][0]["text"].startswith("a<TTSEP>bc")


def test_an_untagged_prompt_is_the_same_as_on_a_plain_server(server: Server, plain_server: Server) -> None:
    for text in ("Tell me about <TTSEP> and <\u2060TTSEP>.", SHARED):
        answers = [each.complete(text, echo=True, return_token_ids=True) for each in (server, plain_server)]
        assert answers[0].body["choices"] == answers[1].body["choices"]
        assert answers[0].body["usage"]["prompt_tokens"] == answers[1].body["usage"]["prompt_tokens"]
        assert "tokendance" not in answers[0].body


def test_header_body_and_both_give_the_same_report(server: Server) -> None:
    body = {"round_id": "front:1"}
    for headers, tag in ((TAG, None), ({}, body), (TAG, body)):
        fields = {"tokendance": tag} if tag else {}
        answer = server.chat(f"Hi<TTSEP>{SHARED}<TTSEP>Go.", headers, **fields)
        report = MemberReport.model_validate(answer.body["tokendance"])
        usage = answer.body["usage"]
        assert (report.round_id, report.prompt_tokens) == ("front:1", usage["prompt_tokens"])
        computed = report.fresh_tokens + report.recomputed_tokens
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - computed
        assert answer.body["kv_transfer_params"] is None


def test_header_and_body_that_differ_are_refused_with_both_values(server: Server) -> None:
    answer = server.chat("Hi", TAG, tokendance={"round_id": "front:2"})
    assert answer.status == 400
    assert "'front:1'" in answer.body["error"]["message"]
    assert "'front:2'" in answer.body["error"]["message"]


def test_a_stream_ends_with_the_report_and_the_true_usage(server: Server) -> None:
    answer = server.chat(f"Hi<TTSEP>{SHARED}", TAG, stream=True, stream_options={"include_usage": True})
    chunks = events(answer.body)
    assert chunks[-1][1] == "[DONE]"
    last = chunks[-2][1]
    report = MemberReport.model_validate(last["tokendance"])
    computed = report.fresh_tokens + report.recomputed_tokens
    cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == last["usage"]["prompt_tokens"] - computed
    assert all("tokendance" not in chunk for _, chunk in chunks[:-2])


def test_several_prompts_of_a_completion_have_a_report_each_and_n_children_share_one(server: Server) -> None:
    several = server.complete([f"a<TTSEP>{SHARED}", f"b<TTSEP>{SHARED}"], TAG)
    assert len(several.body["tokendance"]["reports"]) == 2
    children = server.complete(f"a<TTSEP>{SHARED}", TAG, n=2, temperature=1.0)
    assert len(children.body["choices"]) == 2
    MemberReport.model_validate(children.body["tokendance"])


def test_a_token_id_prompt_takes_its_boundaries_from_the_body(server: Server) -> None:
    ids = token_ids(server, SHARED)
    tag = {"round_id": "front:ids", "segments": [3, len(ids)]}
    assert server.complete(ids, tokendance=tag).body["tokendance"]["prompt_tokens"] == len(ids)
    outside = server.complete(ids, tokendance={**tag, "segments": [len(ids) + 1]})
    assert outside.status == 400
    assert f"got {len(ids) + 1}; allowed: offsets from 0 to {len(ids)}" in outside.body["error"]["message"]


def test_the_responses_api_takes_tags_too(server: Server) -> None:
    body = {"model": SERVED_NAME, "input": f"Hi<TTSEP>{SHARED}", "max_output_tokens": 4, "temperature": 0}
    answer = server.request("/v1/responses", body, TAG)
    assert answer.status == 200
    report = MemberReport.model_validate(answer.body["tokendance"])
    assert report.prompt_tokens == answer.body["usage"]["input_tokens"]
    assert "TTSEP" not in json.dumps(answer.body["output"])


def test_megabytes_of_separators_are_refused_fast_and_harm_nobody(server: Server) -> None:
    started = time.monotonic()
    answer = server.complete("<TTSEP>" * 1_500_000, TAG)
    assert answer.status == 413
    assert time.monotonic() - started < 10
    assert server.chat("Hi", TAG).status == 200


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
    for name in ("maria", "klaus"):
        assert by_name[name]["tokendance"]["group_size"] == 2, name
        assert by_name[name]["tokendance"]["gather_ms"] < 1000, name
    assert by_name["klaus"]["usage"]["completion_tokens"] == 2
    assert answer.body["tokendance"]["failed"] == 4
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


def test_status_tells_version_settings_and_what_the_engine_holds(server: Server) -> None:
    body = server.request("/tokendance/v1/status").body
    assert body["model"] == [SERVED_NAME]
    assert body["config"]["default_backend"] == "master"
    assert set(body["limits"]) == {
        "max_agents",
        "max_blocks",
        "max_block_bytes",
        "max_body_bytes",
        "max_segments",
    }
    assert "unavailable" not in body["engine"]


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
