"""What a master starts with: never nothing, and never one member's private text."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_rounds import NEUTRAL, Prompt, cut, owner, private, rounds
from tokendance_engine.reuse.preamble import make_preamble
from tokendance_engine.segments.transcript import leading, shared_order


def preamble(prompts: list[Prompt], first: list[int], page_size: int = 1) -> list[int]:
    made = [cut(p) for p in prompts]
    tokens = make_preamble([t for t, _ in made], [s for _, s in made], first, NEUTRAL, page_size)
    return [int(token) for token in tokens]


@given(rounds(), st.sampled_from([1, 16, 32]))
def test_a_preamble_is_never_empty_fills_its_pages_and_holds_no_private_token(
    prompts: list[Prompt], page_size: int
) -> None:
    made = [cut(p) for p in prompts]
    wanted = {s.key for _, s in shared_order([segments for _, segments in made], Counter())}
    skip = leading([segments for _, segments in made])
    part = [m for m in made if any(s.key in wanted for s in m[1][skip:-1])]
    assume(part)
    first = [next(s.start for s in segments[skip:-1] if s.key in wanted) for _, segments in part]
    made_of = make_preamble([t for t, _ in part], [s for _, s in part], first, NEUTRAL, page_size)
    assert made_of.dtype == np.int32
    assert len(made_of) > 0
    assert len(made_of) % page_size == 0
    assert all(owner(token) is None for token in made_of.tolist())


def test_it_starts_with_all_leading_segments_that_the_members_share() -> None:
    lead = [(50, 51, 52), (53,)]
    prompts = [[*lead, private(m, 0, 3), (60, 61), (1, 2), (77,)] for m in range(3)]
    assert preamble(prompts, [9, 9, 9]) == [50, 51, 52, 53, 60, 61]


def test_without_common_segments_it_is_common_start_neutral_sentence_common_bridge() -> None:
    prompts = [[(50, 51, *private(m, 0, 3)), (60, 61), (1, 2), (77,)] for m in range(2)]
    assert preamble(prompts, [7, 7]) == [50, 51, *NEUTRAL.tolist(), 60, 61]


def test_shared_text_at_position_zero_still_gets_the_neutral_sentence() -> None:
    orders: list[Prompt] = [[(1, 2), (3,), (77,)], [(3,), (1, 2), (77,)]]
    assert preamble(orders, [0, 0]) == NEUTRAL.tolist()


def test_little_is_taken_from_a_long_common_start_and_a_long_common_bridge() -> None:
    start, bridge = list(range(100, 140)), list(range(200, 300))
    prompts = [[(*start, *private(m, 0, 5 + m), *bridge), (1, 2), (77,)] for m in range(2)]
    made = preamble(prompts, [145, 146])
    assert made == [*start[:16], *NEUTRAL.tolist(), *bridge[-64:]]


def test_one_member_alone_has_nothing_in_common_with_anybody() -> None:
    prompt: Prompt = [private(0, 0, 40), (1, 2), (77,)]
    assert preamble([prompt], [40]) == NEUTRAL.tolist()


def test_leading_segments_that_the_master_holds_anyway_are_not_in_its_preamble_too() -> None:
    """Two of three members start alike: what they share is listed, so it must not come twice."""
    prompts: list[Prompt] = [[(50, 51), private(m, 0, 3), (1, 2), (77,)] for m in range(2)]
    assert preamble(prompts, [0, 0]) == NEUTRAL.tolist()


def test_pages_are_filled_by_more_of_the_neutral_text_between_start_and_bridge() -> None:
    prompts = [[(50, 51, *private(m, 0, 3)), (60, 61), (1, 2), (77,)] for m in range(2)]
    neutral = NEUTRAL.tolist()
    assert preamble(prompts, [7, 7], 16) == [50, 51, *neutral, *neutral[:8], 60, 61]


def test_after_common_segments_the_neutral_text_fills_the_page_and_no_more() -> None:
    prompts = [[(50, 51, 52), private(m, 0, 3), (60, 61), (1, 2), (77,)] for m in range(3)]
    assert preamble(prompts, [8, 8, 8], 8) == [50, 51, 52, *NEUTRAL[:3].tolist(), 60, 61]
    exact = [[tuple(range(50, 58)), private(m, 0, 3), (1, 2), (77,)] for m in range(3)]
    assert preamble(exact, [11, 11, 11], 8) == list(range(50, 58))


def test_a_neutral_text_shorter_than_a_page_is_repeated() -> None:
    alone: Prompt = [private(0, 0, 40), (1, 2), (77,)]
    neutral = NEUTRAL.tolist()
    assert preamble([alone], [40], 64) == [*neutral, *neutral, *neutral, *neutral[:4]]
