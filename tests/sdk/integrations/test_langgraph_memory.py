"""What was said is found again in prompts: whole, the longest first, within bounds."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from tokendance_sdk.integrations.langgraph import shared
from tokendance_sdk.integrations.langgraph.memory import (
    LONG,
    MARKED,
    KnownTexts,
    Sessions,
    split,
    split_once,
    texts_in,
)

TEXTS = st.text(alphabet="ab ", min_size=0, max_size=24)


def known(*texts: str, least: int = 8, most: int = 1 << 20) -> KnownTexts:
    memory = KnownTexts(least, most)
    for text in texts:
        memory.add(text)
    return memory


def found(content: str, *texts: str, least: int = 8) -> list[str]:
    return [text for text, is_known in split(content, [known(*texts, least=least)]) if is_known]


def test_a_text_is_found_wherever_it_stands_whole() -> None:
    text = "I will bring the cake."
    assert found(text, text) == [text]
    for shift in range(40):
        pieces = split("x" * shift + "\n" + text + " So she said.", [known(text)])
        assert [piece for piece in pieces if piece[1]] == [(text, True)], shift


def test_half_a_text_is_not_found() -> None:
    text = "I will bring the cake to the party."
    assert found(text[:-1], text) == []
    assert found(text[1:], text) == []


def test_the_longest_text_wins_and_a_shorter_one_inside_it_does_not_cut_it() -> None:
    short, long = "the cake is good", "I say the cake is good, and so is the tea"
    assert found(f"{long}\n{short}", short, long) == [long, short]


def test_texts_that_overlap_give_one_block() -> None:
    assert found("one two three four five", "one two three", "three four five!", "three four five") == [
        "three four five"
    ]


def test_words_are_not_cut() -> None:
    assert found("notable result here", "able result") == []
    assert found("able results", "able result") == []
    assert found("(able result)", "able result") == ["able result"]


def test_short_texts_are_not_remembered() -> None:
    assert found("Yes. Yes, I do.", "Yes.") == []


def test_white_space_at_the_ends_may_be_missing_in_the_prompt() -> None:
    raw = "\n\nI will bring the cake. \n"
    assert found(f"A:{raw}B:", raw) == [raw]
    assert found("A: I will bring the cake. B:", raw) == ["I will bring the cake."]


@given(st.lists(TEXTS, max_size=6), TEXTS, TEXTS)
def test_pieces_always_add_up_to_the_content(texts: list[str], before: str, after: str) -> None:
    content = before + after.join(texts) + before
    pieces = split(content, [known(*texts, least=2)])
    assert "".join(text for text, _ in pieces) == content
    assert all(text for text, _ in pieces)


@given(st.text(alphabet="ab", min_size=3, max_size=9), TEXTS, TEXTS, st.integers(2, 9))
def test_every_whole_occurrence_is_found(text: str, before: str, after: str, least: int) -> None:
    pieces = split(f"{before}|{text}|{after}", [known(text, least=least)])
    expected = len(text) >= least
    assert ((text, True) in pieces) == expected


@given(st.lists(st.text(alphabet="ab ", min_size=1, max_size=12), max_size=5), st.data(), st.integers(2, 6))
def test_candidates_are_all_occurrences_of_all_texts(
    texts: list[str], data: st.DataObject, least: int
) -> None:
    content = "".join(data.draw(st.lists(st.sampled_from([*texts, " ", "|", "a"]), max_size=12)))
    memory = KnownTexts(least)
    for text in texts[:-1]:
        memory.add(text)
    list(memory.candidates(content))
    for text in texts:  # what was learnt of the first texts holds no longer when more are known
        memory.add(text)
    wanted = {
        (at, at + len(text))
        for each in texts
        for text in (each, each.strip())
        if len(text) >= least
        for at in range(len(content))
        if content.startswith(text, at) and not cut(content, at) and not cut(content, at + len(text))
    }
    assert set(memory.candidates(content)) == wanted


def cut(content: str, at: int) -> bool:
    return 0 < at < len(content) and content[at - 1].isalnum() and content[at].isalnum()


def test_repetitive_text_ends_in_time() -> None:
    text = "ha " * 400
    started = time.monotonic()
    assert found(text * 40, text, text + "ha", least=32)
    assert time.monotonic() - started < 5


def test_memory_is_bounded_and_drops_what_was_seen_least_recently() -> None:
    memory = known(least=8, most=100)
    for number in range(20):
        memory.add(f"{number:08} is a text")
        list(memory.candidates("00000000 is a text"))
    assert "00000000 is a text" in memory
    assert "00000019 is a text" in memory
    assert "00000010 is a text" not in memory
    assert len(memory) <= 5
    assert sum(shifts.total() for shifts in memory._windows.values()) == 4 * len(memory)


def test_dropping_everything_leaves_nothing_behind() -> None:
    memory = known(least=8, most=30)
    memory.add("a" * 29)
    memory.add("b" * 30)
    assert list(memory._texts) == ["b" * 30]
    assert sum(shifts.total() for shifts in memory._windows.values()) == 4


def test_sessions_do_not_see_each_others_texts_and_are_bounded() -> None:
    sessions = Sessions(most=2)
    sessions.of("a").add("what was said in session a, and only there")
    assert not len(sessions.of("b"))
    sessions.of("a")
    sessions.of("c")
    assert "a" in sessions
    assert "b" not in sessions


def test_shared_returns_the_text_unchanged_and_remembers_it() -> None:
    text = "A brief that was marked in the test of the same name."
    assert shared(text) is text
    assert text in MARKED
    assert shared("short") == "short"
    assert "short" not in MARKED


def test_a_threshold_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="got least=1; allowed: 2 characters or more"):
        KnownTexts(1)


def test_state_gives_up_its_texts_but_not_what_people_and_system_said() -> None:
    @dataclass
    class Note:
        text: str

    state = {
        "messages": [HumanMessage("asked"), AIMessage("answered"), SystemMessage("ruled")],
        "drafts": ["one", ("two", {"deep": "three"})],
        "note": Note("four"),
        "count": 5,
        "raw": b"six",
    }
    assert sorted(texts_in(state)) == sorted(["answered", "one", "two", "three", "four"])


def test_a_state_that_holds_itself_is_no_problem() -> None:
    state: dict[str, object] = {"text": "said"}
    state["self"] = state
    assert "said" in set(texts_in(state))


def known_in(content: str, memories: list[KnownTexts]) -> list[str]:
    return split_once(content, memories, lambda pieces: [text for text, is_known in pieces if is_known])


def test_what_was_split_is_split_anew_when_texts_come_or_go() -> None:
    first, second = "The cafe by the river is closed today.", "Nobody told the baker about the party."
    content = f"{first}\n{second}\nWhat now?".ljust(LONG)
    texts = known(first)
    assert known_in(content, [texts]) == [first]
    texts.add(second)
    assert known_in(content, [texts]) == [first, second]
    others = known("x" * 40)
    assert known_in(content, [others, texts]) == [first, second]
    small = KnownTexts(32, most=100)
    small.add(first)
    assert known_in(content, [small]) == [first]
    small.add("y" * 90)  # no room for both
    assert known_in(content, [small]) == []


def test_few_splits_are_kept() -> None:
    texts = known("The cafe by the river is closed today.")
    for number in range(50):
        known_in(f"{number}".ljust(LONG), [texts])
    assert 0 < len(texts.splits) <= 8
