"""Finding the segments of any prompt in the session's transcript."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_rounds import Block, Prompt, cut, key_of, rounds
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
    new = old.extended((key_of(b), np.array(b, dtype=np.int32)) for b in more)
    new.check()
    old.check()
    assert old.tokens().tolist() == before
    assert new.tokens()[: old.rows].tolist() == before
    assert new.tokens(old.rows).tolist() == [token for block in more for token in block]
    assert new.counts() == Counter(map(key_of, [*blocks, *more]))


def test_the_integrity_check_notices_a_shifted_entry() -> None:
    transcript = transcript_of((1,), (2,))
    transcript.rows += 1
    with pytest.raises(AssertionError):
        transcript.check()
