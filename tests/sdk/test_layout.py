"""Layouts are permutations, and a wrong one says which blocks it lost, repeated or invented."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import LayoutError
from tokendance_sdk.layout import Layout

OWNERS = ("ann", "bob", "cy", "di")
SHARED = [Block(f"text of {owner}", owner) for owner in OWNERS]
LAYOUTS = st.one_of(
    st.sampled_from([Layout.canonical(), Layout.self_last(), Layout.rotated(), Layout.shared_first()]),
    st.integers().map(Layout.shuffled),
)
BLOCKS = st.lists(
    st.builds(Block, st.sampled_from(["", "x", "y"]), st.sampled_from([*OWNERS, None])), max_size=8
)


def owners(layout: Layout, agent: str) -> list[str | None]:
    return [block.owner for block in layout.arrange(agent, SHARED)]


@given(LAYOUTS, st.sampled_from([*OWNERS, "stranger"]), BLOCKS)
def test_every_layout_keeps_every_block_once(layout: Layout, agent: str, shared: list[Block]) -> None:
    arranged = layout.arrange(agent, shared)
    assert Counter(arranged) == Counter(shared)
    assert arranged == layout.arrange(agent, shared)


def test_canonical_is_the_same_for_all() -> None:
    assert owners(Layout.canonical(), "ann") == owners(Layout.canonical(), "di") == list(OWNERS)


def test_self_last_moves_only_the_own_block() -> None:
    assert owners(Layout.self_last(), "bob") == ["ann", "cy", "di", "bob"]
    assert owners(Layout.self_last(), "stranger") == list(OWNERS)


def test_rotated_starts_at_the_own_block() -> None:
    assert owners(Layout.rotated(), "cy") == ["cy", "di", "ann", "bob"]
    assert owners(Layout.rotated(), "stranger") == list(OWNERS)


def test_shuffled_differs_between_agents_and_is_the_same_on_every_machine() -> None:
    assert owners(Layout.shuffled(7), "ann") == ["bob", "ann", "cy", "di"]
    assert len({tuple(owners(Layout.shuffled(7), agent)) for agent in OWNERS}) > 1
    assert len({tuple(owners(Layout.shuffled(seed), "ann")) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("order", "fault", "named"),
    [
        (lambda agent, shared: shared[1:], "missing", "ann"),
        (lambda agent, shared: [*shared, shared[0]], "duplicate", "ann"),
        (lambda agent, shared: [*shared, Block("?", "eve")], "unknown", "eve"),
        (lambda agent, shared: [*shared[:-1], shared[0]], "missing: di", "duplicate: ann"),
    ],
)
def test_a_wrong_permutation_names_the_blocks(order: object, fault: str, named: str) -> None:
    with pytest.raises(LayoutError) as raised:
        Layout.custom(order, name="mine").arrange("bob", SHARED)  # type: ignore[arg-type]
    message = str(raised.value)
    assert fault in message
    assert named in message
    assert "'mine'" in message
    assert "'bob'" in message


def test_custom_gets_the_agent_and_its_order_is_used() -> None:
    by_name = Layout.custom(lambda agent, shared: sorted(shared, key=lambda b: b.owner != agent))
    assert owners(by_name, "di") == ["di", "ann", "bob", "cy"]


def test_two_agents_with_equal_output_are_two_blocks() -> None:
    twins = [Block("same", "ann"), Block("same", "bob")]
    assert [b.owner for b in Layout.self_last().arrange("ann", twins)] == ["bob", "ann"]
