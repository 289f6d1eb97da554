"""Where recorded debates say their answers."""

from __future__ import annotations

import pytest
from tokendance_bench.recorded_answers import option, result
from tokendance_sdk.workload import load_workload


@pytest.mark.parametrize(
    ("text", "letter", "before"),
    [
        ("So, the answer is (A) $185,000.\n\nScore of (B): 2", "A", "the answer is ("),
        ("The correct answer to the given question is (D) the extent", "D", "question is ("),
        ("Solution 1: N/A\nAnswer: C", "C", "Answer: "),
        ("The force pair is (B) the force of the man. Choice (A) is incorrect.", "B", "pair is ("),
        ("Choice (A) is incorrect, so what is left is option (C).", "C", "option ("),
        ("Therefore, option B is the correct answer. (B)", "B", "option "),
        ("The adjustment that should be made is D) Common stock", "D", "made is "),
    ],
)
def test_an_option_is_found_where_it_is_said_first(text: str, letter: str, before: str) -> None:
    found = option(text)
    assert found is not None
    assert found.text == letter
    assert text[: found.start].endswith(before)


@pytest.mark.parametrize(
    "text",
    [
        "As a lawyer I do not feel confident providing an answer to this question. (E)",
        "The answer is A formula that I cannot recall.",
        "Answer: Not listed. (The correct answer is $35)",
        "Scores: Agent 1: N/A, Agent 2: 4",
    ],
)
def test_who_chooses_nothing_is_not_given_an_option(text: str) -> None:
    assert option(text) is None


@pytest.mark.parametrize(
    ("text", "answer", "before"),
    [
        (r"First \boxed{4}, no: \boxed{\frac{1}{2}}. Done.", r"\frac{1}{2}", r"no: \boxed{"),
        ("Therefore, the answer is $75$.", "75", "is $"),
        ("So, our answer is $101_6 - 32_6 = 132_6$.", "132_6", "= "),
        ("The updated answer is that the shortest distance if you start anywhere is 14.", "14", "is "),
        ("The shortest distance that can be travelled is 12 units.", "12", "is "),
    ],
)
def test_a_result_is_the_last_one(text: str, answer: str, before: str) -> None:
    found = result(text)
    assert found is not None
    assert found.text == answer
    assert text[: found.start].endswith(before)


@pytest.mark.parametrize("text", [r"\boxed{}", "There are no such values.", "The answer is that it depends."])
def test_who_ends_up_with_nothing_has_no_result(text: str) -> None:
    assert result(text) is None


@pytest.mark.parametrize(
    ("workload", "find", "said"), [("debate-mmlu7", option, 141), ("debate-math4", result, 90)]
)
def test_nearly_all_recorded_answers_are_found(workload: str, find: type, said: int) -> None:
    # The rest was read: they say that they are no experts, or that there is no answer.
    outputs = [text for each in load_workload(workload).rounds[1:] for text in each.outputs.values()]
    found = [answer for text in outputs if (answer := find(text))]
    assert len(found) == said
