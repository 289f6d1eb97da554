"""Cutting prompts at boundaries, and what a segment's key depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.segments.key import segment_key, split

tokens_strategy = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(tokens_strategy)
    return tokens, sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=12)))


@given(cuts())
def test_segments_tile_the_prompt_without_empty_ones(case: tuple[list[int], list[int]]) -> None:
    tokens, boundaries = np.array(case[0], dtype=np.int32), case[1]
    segments = split(tokens, boundaries)
    assert [t for s in segments for t in range(s.start, s.end)] == list(range(len(tokens)))
    assert all(len(s) > 0 for s in segments)
    inner = {b for b in boundaries if 0 < b < len(tokens)}
    assert {s.start for s in segments} == inner | ({0} if len(tokens) else set())


@given(cuts(), st.lists(st.integers(0, 9), max_size=8))
def test_a_key_depends_on_the_tokens_alone_not_on_where_they_stand(
    case: tuple[list[int], list[int]], before: list[int]
) -> None:
    tokens = np.array(case[0], dtype=np.int32)
    moved = np.array([*before, *case[0]], dtype=np.int32)
    shift = len(before)
    first = [s.key for s in split(tokens, case[1])]
    again = [s.key for s in split(moved, [shift, *(b + shift for b in case[1])]) if s.start >= shift]
    assert first == again


@given(tokens_strategy, tokens_strategy)
def test_equal_keys_mean_equal_tokens(a: list[int], b: list[int]) -> None:
    same = segment_key(np.array(a, dtype=np.int32)) == segment_key(np.array(b, dtype=np.int32))
    assert same == (a == b)


def test_a_key_does_not_depend_on_memory_layout_or_integer_width() -> None:
    wide: Any = np.array([[1, 9], [2, 9], [3, 9]], dtype=np.int64)[:, 0]
    assert segment_key(wide) == segment_key(np.array([1, 2, 3], dtype=np.int32))


@pytest.mark.parametrize("boundaries", [[-1], [4], [3, 1], [0, 2, 1]])
def test_boundaries_that_do_not_ascend_within_the_prompt_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must ascend within 0\.\.3"):
        split(np.arange(3, dtype=np.int32), boundaries)
