"""Workloads: the schema is checked, cuts are stated and hold, prompts are the scenario's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_sdk.protocol import ID_PATTERN
from tokendance_sdk.workload import Workload, WorkloadError, find_workload, load_workload, parse_workload
from tokendance_sdk.workload_cut import Cut, cut

ALL = sorted(find_workload("ga-ville3-valentine").parent.glob("*.jsonl"))


def encode(text: str) -> list[int]:
    """UTF-8 bytes as tokens: cuts fall inside characters."""
    return list(text.encode())


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def records(**head: Any) -> list[dict[str, Any]]:
    return [
        {
            "schema": "tokendance.workload/1",
            **{k: k for k in ("name", "title", "kind", "language", "licence", "assembly")},
            "source": {},
            "agents": ["Ann Lee", "李雷"],
            "rounds": 3,
            **head,
        },
        {"kind": "agent", "id": "Ann Lee", "system": "You are Ann.", "history": ["born", "raised"]},
        {"kind": "agent", "id": "李雷", "system": "You are Lei.", "history": []},
        *(
            {
                "kind": "round",
                "index": t,
                "task": f"task {t}",
                "outputs": {"李雷": f"lei says {t}", "Ann Lee": f"ann says {t}"},
                "private": {"Ann Lee": f"ann thinks {t}"},
            }
            for t in range(3)
        ),
    ]


def parsed(changes: list[dict[str, Any]] | None = None) -> Workload:
    return parse_workload([json.dumps(record) for record in changes or records()], "test.jsonl")


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_bundled_workload_is_read_whole(path: Path) -> None:
    workload = load_workload(path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert workload.name == path.stem == lines[0]["name"]
    assert [a.id for a in workload.agents] == lines[0]["agents"]
    assert [dict(r.outputs) for r in workload.rounds] == [
        line["outputs"] for line in lines if line.get("kind") == "round"
    ]


def test_a_prompt_is_history_then_own_past_then_the_last_outputs_then_the_task() -> None:
    workload = parsed()
    ann = workload.agents[0]
    system, user = workload.prompt(ann, 2).plain_messages
    assert system == {"role": "system", "content": "You are Ann."}
    assert user["content"] == (
        "born\nraised\nann thinks 0\nann says 0\nann thinks 1\nann says 1"
        "\n[Ann Lee]\nann says 1\n[李雷]\nlei says 1\n\ntask 2"
    )


def test_round_zero_shares_nothing() -> None:
    assert parsed().shared(0) == []
    assert parsed().shared(0, "transcript") == []


def test_a_transcript_shares_every_earlier_output_once_and_keeps_no_second_copy() -> None:
    workload = parsed()
    shared = [block.text for block in workload.shared(2, "transcript")]
    assert shared == ["ann says 0", "lei says 0", "ann says 1", "lei says 1"]
    text = workload.prompt(workload.agents[0], 2, context="transcript").plain_messages[-1]["content"]
    assert text.count("ann says 0") == 1
    assert "ann thinks 1" in text


def test_private_history_only_grows_at_its_end() -> None:
    workload = cut(load_workload("nego-harbour7"), Cut(history_tokens=900, block_tokens=200), encode, decode)
    for agent in workload.agents:
        for t in range(1, len(workload.rounds)):
            before, now = workload.private_history(agent, t - 1), workload.private_history(agent, t)
            assert now[: len(before)] == before


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_wire_ids_are_legal_and_distinct(path: Path) -> None:
    ids = load_workload(path).wire_ids
    assert len(set(ids.values())) == len(ids)
    assert all(ID_PATTERN.fullmatch(wire) for wire in ids.values())


def test_names_that_look_alike_on_the_wire_stay_apart() -> None:
    changed = records(agents=["a b", "a_b"])
    text = json.dumps(changed, ensure_ascii=False).replace("Ann Lee", "a b").replace("李雷", "a_b")
    assert sorted(parsed(json.loads(text)).wire_ids.values()) == ["a_b", "a_b:1"]


@given(history=st.integers(40, 3000), block=st.integers(4, 600), rounds=st.integers(1, 7))
def test_a_cut_by_tokens_is_never_exceeded(history: int, block: int, rounds: int) -> None:
    whole = load_workload("ga-ville3-valentine")
    small = cut(whole, Cut(rounds=rounds, history_tokens=history, block_tokens=block), encode, decode)
    for agent in small.agents:
        pieces = [agent.system, *small.private_history(agent, rounds - 1)]
        assert sum(len(encode(piece)) for piece in pieces) <= history
    for r, before in zip(small.rounds, whole.rounds, strict=False):
        for name, text in r.outputs.items():
            assert 0 < len(encode(text)) <= block
            assert before.outputs[name].startswith(text)


def test_a_cut_inside_a_character_drops_the_whole_character() -> None:
    small = cut(load_workload("ga-ville25-election-zh"), Cut(block_tokens=10), encode, decode)
    texts = [text for r in small.rounds for text in r.outputs.values()]
    assert not any("\ufffd" in text for text in texts)
    assert max(len(encode(text)) for text in texts) <= 10


def test_a_cut_says_what_it_did_and_leaves_the_original_alone() -> None:
    whole = parsed()
    small = cut(whole, Cut(agents=1, rounds=2, block_tokens=3), encode, decode)
    assert small.cut is not None
    assert (
        small.cut.describe() == "first 1 agents, first 2 rounds, blocks <= 3 tokens; 2 of 2 blocks shortened"
    )
    assert small.rounds[0].outputs == {"Ann Lee": "ann"}
    assert whole == parsed()


def test_a_wide_cut_changes_nothing() -> None:
    whole = parsed()
    small = cut(whole, Cut(history_tokens=10_000, block_tokens=10_000), encode, decode)
    last = len(whole.rounds) - 1
    for agent in whole.agents:
        assert small.prompt(agent, last).plain_messages == whole.prompt(agent, last).plain_messages


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (Cut(agents=3), "has 2 agents, 3 were asked for"),
        (Cut(rounds=4), "has 3 rounds, 4 were asked for"),
        (Cut(block_tokens=5), "needs a tokenizer"),
    ],
)
def test_an_impossible_cut_is_refused(size: Cut, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        cut(parsed(), size)


def test_a_cut_to_nothing_is_refused() -> None:
    with pytest.raises(WorkloadError, match="block_tokens is 0; allowed: at least 1"):
        Cut(block_tokens=0)


def _without_output(changed: list[dict[str, Any]]) -> None:
    changed[3]["outputs"]["李雷"] = ""


def _foreign_private(changed: list[dict[str, Any]]) -> None:
    changed[4]["private"] = {"Bob": "hm"}


def _gap(changed: list[dict[str, Any]]) -> None:
    changed[4]["index"] = 7


def _schema(changed: list[dict[str, Any]]) -> None:
    changed[0]["schema"] = "tokendance.workload/2"


def _twice(changed: list[dict[str, Any]]) -> None:
    changed[2]["id"] = "Ann Lee"


def _history(changed: list[dict[str, Any]]) -> None:
    changed[1]["history"] = [1]


def _kind(changed: list[dict[str, Any]]) -> None:
    changed.append({"kind": "note"})


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_without_output, r"test.jsonl:4: outputs of .*empty: \['李雷'\]"),
        (_foreign_private, r"test.jsonl:5: 'private' of \['Bob'\]"),
        (_gap, r"header says 3 rounds, the lines have \[0, 7, 2\]"),
        (_schema, r"test.jsonl:1: schema is 'tokendance.workload/2'; allowed: 'tokendance.workload/1'"),
        (_twice, r"header names agents \['Ann Lee', '李雷'\], the lines \['Ann Lee', 'Ann Lee'\]"),
        (_history, r"test.jsonl:2: 'history' holds something else than text"),
        (_kind, r"test.jsonl:7: unknown kind of line"),
    ],
)
def test_a_broken_line_is_named_with_what_is_allowed(harm: Any, said: str) -> None:
    changed = records()
    harm(changed)
    with pytest.raises(WorkloadError, match=said):
        parsed(changed)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match=r"no workload 'nonsense'.*ga-ville3-valentine"):
        load_workload("nonsense")


def test_a_round_that_is_not_there_is_refused() -> None:
    with pytest.raises(WorkloadError, match="has no round 3; allowed: 0 to 2"):
        parsed().prompt(parsed().agents[0], 3)
