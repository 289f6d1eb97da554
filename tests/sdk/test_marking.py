"""Shared texts are found in messages that somebody else put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_sdk.blocks import Block
from tokendance_sdk.content import expand_messages, strip_messages
from tokendance_sdk.marking import mark_shared
from tokendance_sdk.protocol import SEPARATOR


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def wire(members: dict[str, list[dict[str, Any]]], known: Any = ()) -> dict[str, list[Any]]:
    marked, blocks = mark_shared(members, known)
    return {
        agent: [m["content"] for m in expand_messages(messages, blocks)] for agent, messages in marked.items()
    }


def test_a_text_that_two_members_have_is_a_block_and_travels_once() -> None:
    marked, blocks = mark_shared({"ann": [user("Hi."), user("mine")], "bob": [user("Hi.")]})
    assert blocks == {Block("Hi.").id: "Hi."}
    assert marked["ann"] == [user([{"type": "block", "ref": Block("Hi.").id}]), user("mine")]
    assert wire({"ann": [user("Hi.")], "bob": [user("Hi.")]})["ann"] == [f"{SEPARATOR}Hi.{SEPARATOR}"]


def test_parts_of_a_message_are_texts_of_their_own() -> None:
    parts = [{"type": "text", "text": text} for text in ("[bob]\n", "Hi.", "go on")]
    seen = wire({"ann": [user(parts)], "eve": [user(parts[:2])]})
    assert seen["ann"] == [f"{SEPARATOR}[bob]\n{SEPARATOR}Hi.{SEPARATOR}go on"]


def test_a_known_text_keeps_its_boundaries_when_one_member_is_left_with_it() -> None:
    assert wire({"ann": [user("Hi.")]}, {Block("Hi.").id}) == {"ann": [f"{SEPARATOR}Hi.{SEPARATOR}"]}
    assert wire({"ann": [user("Hi.")]}) == {"ann": ["Hi."]}


def test_twice_in_one_member_is_not_shared() -> None:
    assert wire({"ann": [user("Hi."), user("Hi.")], "bob": [user("Ho.")]})["ann"] == ["Hi.", "Hi."]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "1", "content": "same"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        user(""),
        user([{"type": "image_url", "image_url": {"url": "same"}}]),
    ],
)
def test_what_is_no_text_of_a_conversation_passes_through(message: dict[str, Any]) -> None:
    marked, blocks = mark_shared({"ann": [message], "bob": [message]})
    assert (marked["ann"], blocks) == ([message], {})


def test_other_fields_of_a_message_stay() -> None:
    marked, _ = mark_shared({a: [user("Hi.", name="klaus")] for a in ("ann", "bob")})
    assert marked["ann"][0]["name"] == "klaus"


TEXTS = st.lists(st.sampled_from(["a", SEPARATOR, f"x{SEPARATOR}", "", "<\u2060TTSEP>", "b c"]), max_size=4)


@given(st.dictionaries(st.sampled_from(["ann", "bob", "eve"]), TEXTS, min_size=1))
def test_without_separators_the_messages_are_what_they_were(texts: dict[str, list[str]]) -> None:
    members = {agent: [user(text) for text in said] for agent, said in texts.items()}
    marked, blocks = mark_shared(members)
    for agent, messages in members.items():
        assert strip_messages(expand_messages(marked[agent], blocks)) == messages
