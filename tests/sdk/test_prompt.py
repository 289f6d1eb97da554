"""Prompts: where separators stand, what passes through, and that every form holds the same text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_sdk.blocks import Block, strip_separators
from tokendance_sdk.content import expand_messages, join, strip_messages
from tokendance_sdk.errors import LayoutError, PromptError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import RoundPrompt, Turn
from tokendance_sdk.protocol import SEPARATOR

KLAUS, MARIA = Block("Klaus speaks.", "klaus"), Block("Maria speaks.", "maria")
HOSTILE = st.lists(
    st.sampled_from(["<", "TTSEP>", SEPARATOR, "<\u2060TTSEP>", "a", "<TT", "SEP>", "\n"])
).map("".join)


def content(prompt: RoundPrompt) -> str:
    (message,) = prompt.messages
    return str(message["content"])


def test_separators_enclose_raw_outputs_and_labels_and_are_shared() -> None:
    prompt = RoundPrompt.assemble("maria", "History.", [KLAUS, MARIA], task="Go.")
    assert content(prompt).split(SEPARATOR) == [
        "History.",
        "\n[klaus]\n",
        "Klaus speaks.",
        "\n[maria]\n",
        "Maria speaks.",
        "\n\nGo.",
    ]


def test_a_segment_is_the_same_in_every_agents_prompt() -> None:
    prompts = [
        RoundPrompt.assemble(agent, "x" * length, [KLAUS, MARIA], layout, task="t")
        for length, agent in enumerate(("klaus", "maria", "isabella"), start=1)
        for layout in (Layout.canonical(), Layout.rotated(), Layout.shuffled(3), Layout.shared_first())
    ]
    for prompt in prompts:
        assert {"Klaus speaks.", "Maria speaks."} <= set(content(prompt).split(SEPARATOR))


def test_without_labels_adjacent_blocks_share_one_separator() -> None:
    prompt = RoundPrompt.assemble("maria", "", [KLAUS, MARIA], label=None)
    assert content(prompt) == f"{SEPARATOR}Klaus speaks.{SEPARATOR}Maria speaks.{SEPARATOR}"


def test_a_label_may_be_a_function() -> None:
    prompt = RoundPrompt.assemble("maria", "h", [KLAUS], label=lambda block: f"<{block.owner}>")
    assert "<klaus>" in content(prompt).split(SEPARATOR)


@pytest.mark.parametrize(
    ("shared", "segments"),
    [
        ([], ["h\n\nt"]),
        ([Block("", "klaus")], ["h", "\n[klaus]\n", "\n\nt"]),
        ([Block("a", "klaus")], ["h", "\n[klaus]\n", "a", "\n\nt"]),
        ([Block("a", "x"), Block("a", "y")], ["h", "\n[x]\n", "a", "\n[y]\n", "a", "\n\nt"]),
    ],
    ids=["no block", "empty block", "one letter", "two agents with equal output"],
)
def test_degenerate_rounds(shared: list[Block], segments: list[str]) -> None:
    assert content(RoundPrompt.assemble("maria", "h", shared, task="t")).split(SEPARATOR) == segments


def test_sixty_four_agents_each_see_sixty_four_blocks() -> None:
    shared = [Block(f"output {n}", f"agent{n}") for n in range(64)]
    for n in range(64):
        prompt = RoundPrompt.assemble(f"agent{n}", f"history {n}", shared, Layout.rotated())
        found = [s for s in content(prompt).split(SEPARATOR) if s.startswith("output")]
        assert found == [f"output {(n + k) % 64}" for k in range(64)]


def test_shared_first_puts_the_blocks_before_the_system_prompt() -> None:
    prompts = [
        RoundPrompt.assemble(
            who, f"I am {who}.", [KLAUS, MARIA], Layout.shared_first(), "t", system=f"You, {who}"
        )
        for who in ("klaus", "maria")
    ]
    heads = [prompt.messages[0]["content"].split("You, ")[0] for prompt in prompts]
    assert heads[0] == heads[1] != ""
    assert [message["role"] for message in prompts[0].messages] == ["system", "user"]


def test_messages_of_a_history_pass_through_untouched() -> None:
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "?"}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    before = copy.deepcopy(history)
    prompt = RoundPrompt.assemble("maria", history, [KLAUS], task="t")
    assert prompt.messages[:2] == [history[0], history[1]]
    assert prompt.messages[2:4] == history[2:]
    assert prompt.plain_messages[:4] == history
    assert prompt.messages[4]["role"] == "user"
    assert history == before


def test_a_literal_in_a_message_or_a_tool_call_is_escaped_and_comes_back() -> None:
    history = [
        {
            "role": "user",
            "content": [{"type": "text", "text": f"a{SEPARATOR}b"}, {"type": "x", "y": SEPARATOR}],
        },
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": f'{{"a": "{SEPARATOR}"}}'}}],
        },
    ]
    messages = RoundPrompt.assemble("maria", history).messages
    assert SEPARATOR not in str(messages)
    assert strip_messages(messages) == history


@given(HOSTILE, st.lists(HOSTILE, max_size=4), HOSTILE, HOSTILE)
def test_hostile_text_neither_forges_a_boundary_nor_changes(
    history: str, outputs: list[str], task: str, name: str
) -> None:
    shared = [Block(text, f"{name}{n}") for n, text in enumerate(outputs)]
    prompt = RoundPrompt.assemble("maria", ["x", history], shared, task=task)
    labels_and_blocks = [text for b in shared for text in (f"\n[{b.owner}]\n", b.text) if text]
    tail = ["\n\n" + task]
    boundaries = len(labels_and_blocks) + 1 if shared else 0
    assert content(prompt).count(SEPARATOR) == boundaries
    expected = "x\n" + history + "".join(labels_and_blocks) + tail[0]
    assert strip_separators(content(prompt)) == expected
    assert prompt.plain_messages == [{"role": "user", "content": expected}]
    assert expand_messages(prompt.round_messages, prompt.blocks) == prompt.messages


def test_private_blocks_are_plain_text() -> None:
    prompt = RoundPrompt.assemble("maria", [KLAUS.private(), "x"], [MARIA], label=None)
    assert content(prompt) == f"Klaus speaks.\nx{SEPARATOR}Maria speaks.{SEPARATOR}"
    assert list(prompt.blocks) == [MARIA.id]


def test_the_answer_continues_the_conversation() -> None:
    first = RoundPrompt.assemble("maria", "h", task="t")
    second = RoundPrompt.assemble("maria", first.answered("said"), [KLAUS], task="u", label=None)
    assert second.messages == [
        {"role": "user", "content": "h\n\nt"},
        {"role": "assistant", "content": f"{SEPARATOR}said{SEPARATOR}"},
        {"role": "user", "content": f"{SEPARATOR}Klaus speaks.{SEPARATOR}\n\nu"},
    ]


def test_errors_name_the_agent_and_what_is_allowed() -> None:
    with pytest.raises(PromptError, match=r"'maria' is empty; allowed"):
        RoundPrompt.assemble("maria")
    with pytest.raises(PromptError, match=r"history\[1\] of agent 'maria': got int '5'; allowed: text"):
        RoundPrompt.assemble("maria", ["a", 5])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="single message"):
        RoundPrompt.assemble("maria", {"role": "user", "content": "x"})  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"missing: klaus"):
        RoundPrompt.assemble("maria", "h", [KLAUS], Layout.custom(lambda agent, shared: []))


def test_turns_keep_their_role() -> None:
    prompt = RoundPrompt.assemble("maria", [Turn("developer", ("be brief",))], task="t")
    assert [message["role"] for message in prompt.messages] == ["developer", "user"]


@given(st.lists(st.tuples(HOSTILE.map(lambda t: t.replace(SEPARATOR, "")), st.booleans()), max_size=8))
def test_join_puts_exactly_one_separator_at_each_block_edge(pieces: list[tuple[str, bool]]) -> None:
    # pieces that form a separator only when put together are the caller's text, not a boundary of join's
    runs: list[tuple[str, bool]] = []
    for text, is_block in pieces:
        if not text:
            continue
        if runs and not is_block and not runs[-1][1]:
            runs[-1] = (runs[-1][0] + text, False)
        else:
            runs.append((text, is_block))
    joined = join(pieces)
    if any(SEPARATOR in text for text, _ in runs):
        return
    edges = [SEPARATOR if b or (i and runs[i - 1][1]) else "" for i, (_, b) in enumerate(runs)]
    last = SEPARATOR if runs and runs[-1][1] else ""
    assert joined == "".join(e + t for e, (t, _) in zip(edges, runs, strict=True)) + last
