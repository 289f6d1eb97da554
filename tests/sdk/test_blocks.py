"""A literal separator never forges a boundary, and comes back unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokendance_sdk.blocks import JOINER, Block, escape, strip_separators, unescape
from tokendance_sdk.protocol import ESCAPED_SEPARATOR, ID_PATTERN, SEPARATOR

PIECES = [
    "<",
    ">",
    "TTSEP>",
    "<TT",
    "SEP>",
    JOINER,
    SEPARATOR,
    ESCAPED_SEPARATOR,
    "a",
    "\n",
    "é",
    "<" + JOINER * 3,
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@given(TEXTS)
def test_unescape_undoes_escape(text: str) -> None:
    assert unescape(escape(text)) == text


@given(TEXTS)
def test_no_separator_survives_escape(text: str) -> None:
    assert SEPARATOR not in escape(text)


@given(TEXTS, TEXTS)
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(TEXTS)
def test_each_escape_is_a_level_of_its_own(text: str) -> None:
    assert unescape(unescape(escape(escape(text)))) == text


@given(st.lists(TEXTS, max_size=6))
def test_segments_come_back_from_wire_text(texts: list[str]) -> None:
    wire = SEPARATOR.join(map(escape, texts))
    assert [unescape(segment) for segment in wire.split(SEPARATOR)] == (texts or [""])
    assert strip_separators(wire) == "".join(texts)


def test_a_literal_gets_one_joiner_more_on_each_escape() -> None:
    assert escape(SEPARATOR) == ESCAPED_SEPARATOR
    assert escape(ESCAPED_SEPARATOR) == f"<{JOINER}{JOINER}TTSEP>"
    assert escape("a < b, TTSEP> and <TTsep>") == "a < b, TTSEP> and <TTsep>"


@given(TEXTS, TEXTS)
def test_ids_are_valid_and_follow_the_text_alone(one: str, other: str) -> None:
    assert ID_PATTERN.fullmatch(Block(one).id)
    assert (Block(one, "klaus").id == Block(other, "maria").id) == (one == other)


def test_ids_are_the_same_on_every_machine() -> None:
    assert Block("Hello.").id == "b:2d8bd7d9bb5f85ba643f0110d50cb506"
