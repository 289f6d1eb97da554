r"""Where a recorded debate's text says its answer: an option's letter, or the result of a calculation.

Texts are what other models wrote, so this reads phrases, most telling first. Where a text says no answer ("I am a
psychologist, I cannot tell") nothing is found, which callers count.

>>> text = "First ... Therefore, the answer is (C) 924 Hz."
>>> text[option(text).start :]
'C) 924 Hz.'
>>> result(r"so $n = \boxed{\frac{1}{2}}$.")
Answer(start=16, text='\\frac{1}{2}')
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPTIONS = "ABCD"

_LETTER = f"[{OPTIONS}]"
_STATED = (
    # "the correct answer to the question is (B)", "the answer would be (C)": within one sentence
    re.compile(rf"\b(?:[Aa]nswer|[Ss]olution)\b[^.\n(]{{0,80}}\((?P<it>{_LETTER})\)"),
    # "Answer: C", "the answer is C."; never "the answer is A formula ..."
    re.compile(
        r"\b[Aa]nswer(?::| is| would be| must be)\s+(?:[Oo]ption |[Cc]hoice )?"
        rf"(?P<it>{_LETTER})(?=[).,:;\n]|$)"
    ),
)
_DENIED = (
    r"(?!\)?\)? (?:is|are|was|describes?|contains?|being)[^.\n]{0,40}\b(?:incorrect|wrong|irrelevant|not)\b)"
)
_NAMED = (
    # "which corresponds to option (D)", "Option B is correct", "is (B) the force of the man"
    re.compile(rf"\((?P<it>{_LETTER}){_DENIED}\)"),
    re.compile(rf"\b[Oo]ption (?P<it>{_LETTER})\b(?= is (?:the )?correct)"),
    re.compile(rf"\b(?:is|be):? (?P<it>{_LETTER})\)"),
)
_NUMBER = r"(?P<it>-?[\d\\][^\s$]*?)(?=[.,;]?(?:[\s$]|$))"
_RESULT = (
    # "the answer is $17_6$", "our answer is $101_6 - 32_6 = 132_6$"
    re.compile(rf"\b[Aa]nswer (?:is|must be|would be):? \$?(?:[^$.\n]*= ?)?{_NUMBER}"),
    # "the answer is that the shortest distance that can be travelled ... is 14"
    re.compile(rf"\b(?:distance|value|sum)\b[^.\n]* is \$?{_NUMBER}"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Where an answer stands in its text: from character `start` on, and what it is."""

    start: int
    text: str


def option(text: str) -> Answer | None:
    """The letter of the option that `text` chooses, where it says so first; None if it chooses none.

    The first place, because what stands later repeats it: there the letter follows from the text before it.
    """
    for phrases in (_STATED, _NAMED):
        found = [match for phrase in phrases if (match := phrase.search(text))]
        if found:
            first = min(found, key=lambda match: match.start("it"))
            return Answer(first.start("it"), first["it"])
    return None


def result(text: str) -> Answer | None:
    r"""The result that `text` ends up with: its last `\boxed{...}`, else what it calls the answer; None if neither."""
    at = text.rfind("\\boxed{")
    if at >= 0:
        start = at + len("\\boxed{")
        inner = _until_closed(text[start:])
        return Answer(start, inner) if inner.strip() else None
    for phrase in _RESULT:
        found = list(phrase.finditer(text))
        if found:
            return Answer(found[-1].start("it"), found[-1]["it"])
    return None


def _until_closed(text: str) -> str:
    """What stands before the brace that closes one opened before `text`; all of it if none does."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if not depth:
            return text[:place]
    return text
