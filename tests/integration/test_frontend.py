"""Tags and separators on a real server."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("vllm")

from tokendance_sdk.protocol import MemberReport
from vllm_server import SERVED_NAME, Server
from wire import SHARED, events, token_ids

pytestmark = pytest.mark.server

TAG = {"X-TokenDance-Round-Id": "front:1"}
NEVER = ("TTSEP", "\u2060")


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


def test_a_session_is_released(server: Server) -> None:
    answer = server.request("/tokendance/v1/release", {"session_id": "over"})
    assert (answer.status, answer.body) == (200, {"session_id": "over", "released": False})
    for body in ({"session_id": "not an id"}, {"session_id": "x", "round": 1}, {}, b"no json"):
        assert server.request("/tokendance/v1/release", body).status == 400


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
