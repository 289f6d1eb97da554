"""Synthetic workloads have the size that was asked for, and obey the schema of recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokendance_bench.run_synthetic import ORDERS, Shape, block_for, lines, main, synthetic
from tokendance_sdk.workload import load_workload

shapes = st.builds(
    Shape,
    agents=st.integers(1, 6),
    rounds=st.integers(1, 4),
    history=st.integers(50, 80),
    block=st.integers(1, 30),
    common=st.floats(0, 1),
    order=st.sampled_from(ORDERS),
    uneven=st.integers(0, 10),
    seed=st.integers(0, 9),
)


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_every_shape_is_a_workload_of_that_shape(shape: Shape) -> None:
    found = synthetic(shape)
    assert len(found.agents) == shape.agents
    assert len(found.rounds) == shape.rounds
    for place, agent in enumerate(found.agents):
        assert sum(len(text.split()) for text in agent.history) == shape.history - place * shape.uneven
    for each in found.rounds:
        assert {len(text.split()) for text in each.outputs.values()} == {shape.block}
        assert sorted(each.speaking_order) == sorted(found.agent_ids)
    assert lines(shape) == lines(shape)


def test_texts_differ_between_agents_rounds_and_seeds() -> None:
    one, other = synthetic(Shape(seed=1)), synthetic(Shape(seed=2))
    texts = [text for w in (one, other) for r in w.rounds for text in r.outputs.values()]
    assert len(set(texts)) == len(texts)


def test_common_words_are_the_same_in_all_outputs_of_a_round() -> None:
    found = synthetic(Shape(agents=3, block=20, common=0.5))
    for each in found.rounds:
        assert len({" ".join(text.split()[10:]) for text in each.outputs.values()}) == 1
        assert len({" ".join(text.split()[:10]) for text in each.outputs.values()}) == 3


def test_speaking_orders() -> None:
    rotating = [r.speaking_order for r in synthetic(Shape(agents=3, rounds=3, order="rotating")).rounds]
    assert [order[0] for order in rotating] == ["agent00", "agent01", "agent02"]
    same = {r.speaking_order for r in synthetic(Shape(agents=3, order="same")).rounds}
    assert len(same) == 1


@given(st.floats(0.05, 0.95), st.integers(1, 40), st.integers(500, 3000))
def test_a_shared_share_sets_the_blocks_length(share: float, agents: int, history: int) -> None:
    block = block_for(share, agents, history)
    shape = Shape(agents=agents, history=history, block=block)
    rounding = agents / (history + agents * block)  # one word more or less in every block
    assert block == 1 or abs(shape.shared_share - share) <= rounding


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agents": 0}, "agents is 0"),
        ({"common": 1.5}, "common is 1.5"),
        ({"order": "odd"}, "allowed: same, rotating, random"),
        ({"history": 100, "agents": 5, "uneven": 30}, "allowed: at most 25"),
    ],
)
def test_impossible_shapes_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shape(**fields)


def test_the_command_writes_a_file_that_benchmarks_read(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    assert main([str(path), "--agents", "4", "--history", "100", "--shared-share", "0.5"]) == 0
    found = load_workload(path)
    assert len(found.agents) == 4
    assert len(found.rounds[0].outputs["agent00"].split()) == 25


def test_the_command_says_what_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "w.jsonl"), "--shared-share", "1.5"])
    assert ended.value.code == 2
    assert "between 0 and 1" in capsys.readouterr().err
