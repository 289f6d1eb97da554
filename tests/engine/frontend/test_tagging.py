"""Headers and body -> tag: each form alone, both together, and every way to be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.tagging import check_prompts, check_segments, has_tag_header, read_tag
from tokendance_sdk.protocol import HEADER_FIELDS, MAX_ROUND_SIZE, RoundTag

NAMES = {field: header for header, field in HEADER_FIELDS.items()}


def headers(**fields: str) -> list[tuple[bytes, bytes]]:
    return [(NAMES[name].lower().encode(), value.encode()) for name, value in fields.items()]


def test_without_header_and_body_there_is_no_tag() -> None:
    assert read_tag([(b"content-type", b"application/json")]) is None


def test_headers_alone_make_a_tag() -> None:
    tag = read_tag(headers(round_id="sim-7:12", agent_id="maria", round_size="3", session_id="sim"))
    assert tag == RoundTag(round_id="sim-7:12", agent_id="maria", round_size=3, session_id="sim")


def test_body_alone_makes_the_same_tag() -> None:
    body = {"round_id": "sim-7:12", "agent_id": "maria", "round_size": 3, "session_id": "sim"}
    assert read_tag([], body) == read_tag(
        headers(round_id="sim-7:12", agent_id="maria", round_size="3", session_id="sim")
    )


def test_header_and_body_that_agree_are_one_tag() -> None:
    body = {"round_id": "r:1", "round_size": 2, "fidelity": "fast"}
    tag = read_tag(headers(round_id="r:1", round_size="2", agent_id="a"), body)
    assert tag == RoundTag(round_id="r:1", round_size=2, agent_id="a", fidelity="fast")


@pytest.mark.parametrize(
    ("field", "header", "body"),
    [("round_id", "r:1", "r:2"), ("agent_id", "a", "b"), ("round_size", "2", 3), ("session_id", "s", "t")],
)
def test_header_and_body_that_disagree_are_refused_with_both_values(
    field: str, header: str, body: Any
) -> None:
    given_headers = headers(**{"round_id": "r:1", field: header})
    with pytest.raises(RequestRejectedError) as caught:
        read_tag(given_headers, {"round_id": "r:1", field: body})
    assert caught.value.status == 400
    for part in (NAMES[field], f"tokendance.{field}", repr(int(header) if field == "round_size" else header)):
        assert part in str(caught.value)
    assert repr(body) in str(caught.value)


@pytest.mark.parametrize("value", ["", "a b", "ä", "x" * 129, "a/b", "a\n"])
@pytest.mark.parametrize("field", ["round_id", "agent_id", "session_id"])
def test_malformed_ids_are_refused_with_name_value_and_rule(field: str, value: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        read_tag([], {"round_id": "r:1", field: value})
    assert caught.value.param == f"tokendance.{field}"
    assert repr(value)[:100] in str(caught.value)
    assert "1 to 128 characters of A-Za-z0-9._:-" in str(caught.value)


@pytest.mark.parametrize("size", ["0", "-1", "5000", "many", "", "1.0", "٣", "9" * 400])
def test_a_wrong_size_in_the_header_is_refused(size: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        read_tag(headers(round_id="r:1", round_size=size))
    assert caught.value.param == "X-TokenDance-Round-Size"
    assert f"a whole number from 1 to {MAX_ROUND_SIZE}" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 5000, "3", 2.5, True, None, [3]])
def test_a_wrong_size_in_the_body_is_refused_or_absent(size: Any) -> None:
    if size is None:
        tag = read_tag([], {"round_id": "r:1", "round_size": None})
        assert tag is not None
        assert tag.round_size is None
        return
    with pytest.raises(RequestRejectedError, match=r"tokendance.round_size: got .*; allowed: a whole number"):
        read_tag([], {"round_id": "r:1", "round_size": size})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("r:1", "tokendance: got 'r:1'; allowed: an object"),
        ([], r"tokendance: got \[\]; allowed: an object"),
        ({}, "tokendance.round_id: missing, but an empty object is given"),
        ({"agent_id": "a"}, "tokendance.round_id: missing, but agent_id is given"),
        ({"round_id": "r", "fidelity": "best"}, "tokendance.fidelity: got 'best'; allowed: exact, balanced"),
        ({"round_id": "r", "options": 3}, "tokendance.options: got 3; allowed: an object"),
        (
            {"round_id": "r", "segments": "1"},
            "tokendance.segments: got '1'; allowed: a list of token offsets",
        ),
        ({"round_id": "r", "rounds": 3}, "tokendance.rounds: unknown key; allowed: round_id, agent_id"),
        ({"round_id": 3}, "tokendance.round_id: got 3; allowed: 1 to 128"),
    ],
)
def test_bodies_of_the_wrong_shape_are_refused(body: Any, message: str) -> None:
    with pytest.raises(RequestRejectedError, match=message):
        read_tag([], body)


def test_an_agent_header_without_a_round_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="round_id: missing, but agent_id is given"):
        read_tag(headers(agent_id="a"))


def test_a_header_given_twice_with_two_values_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="given twice, as 'r:1' and as 'r:2'"):
        read_tag([*headers(round_id="r:1"), *headers(round_id="r:2")])


@given(st.binary(max_size=200))
def test_no_header_value_gets_past_the_id_rule_or_crashes(raw: bytes) -> None:
    try:
        tag = read_tag([(b"x-tokendance-round-id", raw)])
    except RequestRejectedError:
        return
    assert tag is not None
    assert tag.round_id == raw.decode("latin-1").strip()


def test_header_names_are_recognised_in_any_case() -> None:
    assert has_tag_header([(b"X-TokenDance-Round-Id", b"r")])
    assert not has_tag_header([(b"x-tokendance", b"r")])


def test_segments_go_with_one_prompt_of_token_ids() -> None:
    tag = RoundTag(round_id="r", segments=[0, 2, 2, 3])
    check_prompts({"prompt": [5, 6, 7]}, tag, 10)
    check_prompts({"prompt": [[5, 6, 7]]}, tag, 10)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "text"},
        {"prompt": ["a"]},
        {"messages": []},
        {"prompt": [[1, 2, 3], [1, 2, 3]]},
        {"prompt": []},
    ],
)
def test_segments_with_any_other_prompt_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(RequestRejectedError, match="only with one prompt of token ids; in text use <TTSEP>"):
        check_prompts(body, RoundTag(round_id="r", segments=[1]), 10)


@pytest.mark.parametrize(
    ("segments", "message", "status"),
    [
        ([4], "got 4; allowed: offsets from 0 to 3", 400),
        ([-1, 2], "got -1; allowed: offsets from 0 to 3", 400),
        ([2, 1], "offsets in ascending order", 400),
        ([1] * 10, "got 11 segments; allowed: at most 10", 413),
    ],
)
def test_segments_out_of_range_order_or_number_are_refused(
    segments: list[int], message: str, status: int
) -> None:
    with pytest.raises(RequestRejectedError, match=message) as caught:
        check_segments(segments, 3, 10)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "<TTSEP>" * 10},
        {"prompt": ["short", "<TTSEP>" * 10]},
        {"messages": [{"content": "<TTSEP>" * 5}, {"content": [{"type": "text", "text": "<TTSEP>" * 5}]}]},
        {"input": "<TTSEP>" * 10},
    ],
)
def test_too_many_separators_in_one_prompt_are_a_413(body: dict[str, Any]) -> None:
    with pytest.raises(RequestRejectedError, match="got 11 segments; allowed: at most 10") as caught:
        check_prompts(body, RoundTag(round_id="r"), 10)
    assert caught.value.status == 413


def test_the_limit_on_separators_is_per_prompt() -> None:
    check_prompts({"prompt": ["<TTSEP>" * 9, "<TTSEP>" * 9]}, RoundTag(round_id="r"), 10)
