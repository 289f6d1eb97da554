"""Finding the segments of any prompt in the session's transcript."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import FILLER, Block, Prompt, cut, key_of, rounds
from tokendance_engine.segments import key as key_module
from tokendance_engine.segments.transcript import Transcript

PREAMBLE = np.array([500, 501, 502], dtype=np.int32)


def transcript_of(*blocks: Block) -> Transcript:
    made = Transcript(PREAMBLE)
    for block in blocks:
        made.append(key_of(block), np.array(block, dtype=np.int32))
    made.check()
    return made


blocks_strategy = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=8)


@given(blocks_strategy, rounds())
def test_every_match_points_at_rows_that_hold_the_same_tokens(
    blocks: list[Block], prompts: list[Prompt]
) -> None:
    transcript = transcript_of(*blocks)
    rows = transcript.tokens()
    for prompt in prompts:
        tokens, segments = cut(prompt)
        found = transcript.match(tokens, segments)
        hits = [(s, row) for s, row in zip(segments, found, strict=True) if row is not None]
        for segment, row in hits:
            assert row >= len(PREAMBLE)
            assert rows[row : row + len(segment)].tolist() == tokens[segment.start : segment.end].tolist()
        assert len({row for _, row in hits}) == len(hits), "two segments share one row"
        asked, held = Counter(s.key for s in segments), transcript.counts()
        assert Counter(s.key for s, _ in hits) == asked & held


@given(st.permutations([(1, 2), (3,), (4, 5, 6), (7, 7)]))
def test_any_order_of_the_blocks_is_found(order: list[Block]) -> None:
    transcript = transcript_of((1, 2), (3,), (4, 5, 6), (7, 7))
    at = {entry.tokens.tobytes(): entry.row for entry in transcript.entries}
    tokens, segments = cut(order)
    expected = [at[np.array(block, dtype=np.int32).tobytes()] for block in order]
    assert transcript.match(tokens, segments) == expected


def test_repeats_are_aligned_from_the_end_so_that_a_window_meets_the_newest_rounds() -> None:
    label = (9, 9)
    transcript = transcript_of(label, (1,), label, (2,), label, (3,))
    tokens, segments = cut([label, (2,), label, (3,)])
    assert transcript.match(tokens, segments) == [6, 8, 9, 11]


def test_more_repeats_than_the_transcript_holds_leave_the_oldest_unmatched() -> None:
    transcript = transcript_of((1,), (1,))
    tokens, segments = cut([(1,), (8,), (1,), (8,), (1,)])
    assert transcript.match(tokens, segments) == [None, None, 3, None, 4]


def test_a_hash_collision_never_matches_foreign_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "segment_key", lambda tokens: b"the same for all")
    foreign, segments = cut([(5, 6), (7, 8)])
    assert {s.key for s in segments} == {b"the same for all"}
    transcript = Transcript(PREAMBLE)
    transcript.append(b"the same for all", np.array([1, 2], dtype=np.int32))
    assert transcript.match(foreign, segments) == [None, None]
    own, segments = cut([(1, 2)])
    assert transcript.match(own, segments) == [3]


@given(blocks_strategy, blocks_strategy)
def test_an_extended_transcript_keeps_every_row_and_leaves_the_old_one_alone(
    blocks: list[Block], more: list[Block]
) -> None:
    old = transcript_of(*blocks)
    before = old.tokens().tolist()
    new = old.copy()
    for block in more:
        new.open_region(np.array([FILLER], dtype=np.int32))
        new.append(key_of(block), np.array(block, dtype=np.int32))
    new.check()
    old.check()
    assert old.tokens().tolist() == before
    assert new.tokens()[: old.rows].tolist() == before
    assert new.tokens(old.rows).tolist() == [token for block in more for token in (FILLER, *block)]
    assert (old.regions, len(new.regions)) == ([], len(more))
    assert new.counts() == Counter(map(key_of, [*blocks, *more]))


def test_the_integrity_check_notices_a_shifted_entry() -> None:
    transcript = transcript_of((1,), (2,))
    transcript.rows += 1
    with pytest.raises(AssertionError):
        transcript.check()


def with_regions(*blocks: Block, page: int = 4) -> Transcript:
    """Every block in a region of its own, at a page boundary."""
    made = Transcript(PREAMBLE)
    for block in blocks:
        made.open_region(np.full(-made.rows % page, FILLER, dtype=np.int32))
        made.append(key_of(block), np.array(block, dtype=np.int32))
    return made


def test_regions_start_at_page_boundaries_and_end_where_the_fillers_of_the_next_end() -> None:
    made = with_regions((1, 2, 3), (4, 5, 6, 7), (8,))
    made.check()
    assert made.regions == [4, 8, 12]
    assert [made.region(i) for i in range(3)] == [(4, 8), (8, 12), (12, 13)]
    assert made.tokens().tolist() == [*PREAMBLE, FILLER, 1, 2, 3, FILLER, 4, 5, 6, 7, 8]


def test_no_prompt_ever_matches_fillers() -> None:
    made = with_regions((1, 2), (3,))
    tokens, segments = cut([(FILLER,), (1, 2), (FILLER, FILLER), (3,)])
    assert made.match(tokens, segments) == [None, 4, None, 8]
    assert made.counts() == Counter({key_of((1, 2)): 1, key_of((3,)): 1})


def test_regions_get_their_positions_in_order_and_skip_none_by_themselves() -> None:
    made = with_regions((1, 2), (3,), (4,))
    made.place(4)
    assert (made.placed, made.frame.steps) == (1, ())
    made.place(20)
    made.place(24)
    made.check()
    assert made.frame.at(np.arange(made.rows)).tolist() == [*range(8), *range(20, 25)]
    assert made.frame.steps == ((8, 12),), "the third follows the second without a gap"


def test_the_preamble_keeps_its_place_and_the_first_region_skips() -> None:
    made = Transcript(np.arange(4, dtype=np.int32))
    made.open_region(np.zeros(0, dtype=np.int32))
    made.append(key_of((1, 2)), np.array([1, 2], dtype=np.int32))
    made.place(20)
    made.check()
    assert made.frame.at(np.arange(made.rows)).tolist() == [0, 1, 2, 3, 20, 21]


def test_rows_that_were_computed_before_any_region_keep_their_positions() -> None:
    """Their session asked for copies first: their keys are rotated for where they stood then."""
    made = transcript_of((1, 2, 3), (4, 5, 6, 7))
    made.open_region(np.full(2, FILLER, dtype=np.int32))
    made.append(key_of((8,)), np.array([8], dtype=np.int32))
    made.place(40)
    made.check()
    assert made.frame.at(np.arange(made.rows)).tolist() == [*range(12), 40]


def test_a_region_never_stands_before_the_end_of_what_precedes_it() -> None:
    made = with_regions((1, 2), (3,))
    made.place(12)
    with pytest.raises(ValueError, match="cannot follow"):
        made.place(12)
    assert made.placed == 1


def test_a_copy_gets_regions_and_positions_of_its_own() -> None:
    old = with_regions((1, 2), (3,))
    old.place(8)
    new = old.copy()
    new.place(40)
    new.open_region(np.zeros(0, dtype=np.int32))
    new.append(key_of((9,)), np.array([9], dtype=np.int32))
    new.check()
    old.check()
    assert (old.placed, len(old.regions), old.frame.shift) == (1, 2, 4)
    assert old.match(*cut([(9,)])) == [None]
