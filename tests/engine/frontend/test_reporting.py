"""Reports in responses and streams, and the number of cached tokens that follows from them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.frontend.reporting import StreamReporter, add_reports, take_report

REPORT = {"round_id": "r", "agent_id": "a", "fresh_tokens": 30, "recomputed_tokens": 12, "reused_tokens": 58}
OTHER = {"round_id": "r", "agent_id": "b", "fresh_tokens": 8, "recomputed_tokens": 0, "reused_tokens": 0}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def test_the_report_is_taken_out_of_vllms_own_field() -> None:
    output = SimpleNamespace(kv_transfer_params={"tokendance": REPORT, "other": 1})
    assert take_report(output) == REPORT
    assert output.kv_transfer_params == {"other": 1}
    assert take_report(output) is None


def test_cached_tokens_are_what_was_not_computed() -> None:
    payload: dict[str, Any] = {
        "usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 99, "x": 1}}
    }
    add_reports(payload, [REPORT])
    assert payload["usage"]["prompt_tokens_details"] == {"cached_tokens": 58, "x": 1}
    assert payload["tokendance"] == REPORT


def test_cached_tokens_appear_where_vllm_left_them_out() -> None:
    payload: dict[str, Any] = {"usage": {"prompt_tokens": 42, "prompt_tokens_details": None}}
    add_reports(payload, [REPORT])
    assert payload["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_responses_api_has_its_own_field() -> None:
    payload: dict[str, Any] = {"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 1}}}
    add_reports(payload, [REPORT])
    assert payload["usage"]["input_tokens_details"] == {"cached_tokens": 58}


def test_several_prompts_have_their_reports_in_a_list_and_one_sum() -> None:
    payload: dict[str, Any] = {"usage": {"prompt_tokens": 150}}
    add_reports(payload, [REPORT, OTHER])
    assert payload["tokendance"] == {"reports": [REPORT, OTHER]}
    assert payload["usage"]["prompt_tokens_details"] == {"cached_tokens": 100}


def test_without_a_report_a_response_is_left_alone() -> None:
    payload = {"usage": {"prompt_tokens": 3}}
    add_reports(payload, [])
    assert payload == {"usage": {"prompt_tokens": 3}}


def test_a_stream_passes_at_once_until_the_report_is_there() -> None:
    reports: dict[str, Any] = {}
    stream = StreamReporter(reports)
    first = event({"choices": [1]})
    assert stream.feed(first) == first
    reports["id"] = REPORT
    assert stream.feed(event({"choices": [2]})) == b""
    assert stream.feed(DONE) == _with_report({"choices": [2]}) + DONE


def test_the_usage_chunk_is_the_one_that_carries_the_report() -> None:
    stream = StreamReporter({"id": REPORT})
    usage = {"choices": [], "usage": {"prompt_tokens": 100}}
    out = stream.feed(event({"choices": [1]}) + event(usage) + DONE)
    chunks = [json.loads(line[6:]) for line in out.split(b"\n\n")[:2]]
    assert "tokendance" not in chunks[0]
    assert chunks[1]["tokendance"] == REPORT
    assert chunks[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 58


def test_a_stream_that_ends_without_done_loses_nothing() -> None:
    stream = StreamReporter({"id": REPORT})
    assert stream.feed(event({"choices": [1]})) == b""
    assert (
        stream.feed(b": comment\n\nrest", more=False)
        == b": comment\n\n" + _with_report({"choices": [1]}) + b"rest"
    )


def test_an_error_event_stays_as_it_is() -> None:
    stream = StreamReporter({"id": REPORT})
    error = event({"error": {"message": "no"}})
    assert stream.feed(error + DONE) == error + DONE


def test_the_final_event_of_a_responses_stream_carries_the_report_in_its_response() -> None:
    stream = StreamReporter({"id": REPORT})
    final = {"type": "response.completed", "response": {"usage": {"input_tokens": 50}}}
    out = stream.feed(b"event: response.completed\n" + event(final), more=False)
    name, data = out.strip().split(b"\n")
    assert name == b"event: response.completed"
    assert json.loads(data[6:])["response"]["tokendance"] == REPORT


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(0, 6))
def test_chunks_cut_anywhere_come_out_in_order_with_one_report(cuts: list[int], arrives: int) -> None:
    chunks = [{"n": number, "text": "a\n\nb"} for number in range(5)]
    data = b"".join(map(event, chunks)) + DONE
    reports: dict[str, Any] = {}
    stream = StreamReporter(reports)
    out = b""
    for number, size in enumerate([*cuts, len(data)]):
        if number == arrives:
            reports["id"] = REPORT
        piece, data = data[:size], data[size:]
        out += stream.feed(piece)
    out += stream.feed(b"", more=False)
    values = [line[6:] for line in out.split(b"\n\n") if line]
    seen = [json.loads(value) for value in values[:-1]]
    assert values[-1] == b"[DONE]"
    assert [{key: chunk[key] for key in ("n", "text")} for chunk in seen] == chunks
    assert sum("tokendance" in chunk for chunk in seen) <= 1
    assert all("tokendance" not in chunk for chunk in seen[:-1])


def _with_report(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({**chunk, "tokendance": REPORT}, separators=(",", ":")).encode() + b"\n\n"
