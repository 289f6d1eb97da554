"""Which segments a round shares, and in which order its master holds them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import Block, Prompt, cut, key_of, owner, private, rounds
from tokendance_engine.segments.transcript import leading, shared_order

NOTHING: Counter[bytes] = Counter()


def listed(prompts: list[Prompt], known: Counter[bytes] = NOTHING) -> list[Block]:
    made = [cut(p) for p in prompts]
    order = shared_order([segments for _, segments in made], known)
    return [tuple(made[member][0][s.start : s.end].tolist()) for member, s in order]


@given(rounds())
def test_private_text_of_one_member_never_appears(prompts: list[Prompt]) -> None:
    assert all(owner(token) is None for block in listed(prompts) for token in block)


@given(rounds(least=1), st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple), max_size=3))
def test_every_listed_segment_is_in_two_members_or_known(prompts: list[Prompt], known: list[Block]) -> None:
    keys = Counter(map(key_of, known))
    segments = [cut(p)[1] for p in prompts]
    skip = leading(segments)
    bodies = [Counter(s.key for s in body[skip:-1]) for body in segments]
    counts = Counter(map(key_of, listed(prompts, keys)))
    for key, times in counts.items():
        assert key in keys or sum(key in body for body in bodies) >= 2
        assert times == max(body[key] for body in bodies)
    missing = {key for body in bodies for key in body} - set(counts)
    assert all(key not in keys and sum(key in body for body in bodies) == 1 for key in missing)


@given(rounds())
def test_the_first_member_gives_the_order(prompts: list[Prompt]) -> None:
    segments = [cut(p)[1] for p in prompts]
    order = shared_order(segments, NOTHING)
    mine = [s for member, s in order if member == 0]
    wanted = {s.key for _, s in order}
    body = segments[0][leading(segments) : -1]
    assert mine == [s for s in body if s.key in wanted]
    assert order[: len(mine)] == [(0, s) for s in mine], "others' segments come after the first member's"
    assert [member for member, _ in order] == sorted(member for member, _ in order)


def test_different_orders_share_all_blocks_once() -> None:
    a, b, c = (1, 2), (3, 4), (5, 6)
    prompts = [[private(m, 0, 4), *order, (77,)] for m, order in enumerate([(a, b, c), (c, a, b), (b, c, a)])]
    assert listed(prompts) == [a, b, c]


def test_equal_outputs_of_two_agents_are_listed_as_often_as_one_member_shows_them() -> None:
    same, label = (1, 2), (9,)
    prompts = [[private(m, 0, 2), label, same, label, same, (77,)] for m in range(2)]
    assert listed(prompts) == [label, same, label, same]


def test_a_private_block_repeated_inside_one_prompt_stays_private() -> None:
    mine = private(0, 0, 3)
    prompts = [[mine, (1,), mine, (1,), (77,)], [private(1, 0, 3), (1,), (77,)]]
    assert listed(prompts) == [(1,), (1,)]


def test_common_leading_segments_are_left_to_the_prefix_cache() -> None:
    system, task, out = (50, 51), (52,), (1, 2, 3)
    prompts = [[system, task, private(m, 0, 2), out, (77,)] for m in range(3)]
    assert leading([cut(p)[1] for p in prompts]) == 2
    assert listed(prompts) == [out]


def test_the_last_segment_is_never_shared_even_when_all_have_it() -> None:
    assert listed([[private(m, 0, 2), (77, 78)] for m in range(4)]) == []


def test_one_member_alone_shares_only_what_is_known() -> None:
    prompt = [[private(0, 0, 2), (1, 2), (3, 4), (77,)]]
    assert listed(prompt) == []
    assert listed(prompt, Counter({key_of((3, 4)): 1})) == [(3, 4)]


def test_no_members_and_empty_prompts_share_nothing() -> None:
    assert shared_order([], NOTHING) == []
    assert shared_order([[], []], NOTHING) == []
