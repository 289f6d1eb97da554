"""Approximate pages under keys of their own, on vLLM's real requests and hashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.rekey import Chain, Disposition, Point, rekey, unkey
from tokendance_engine.segments.filling import Filling
from tokendance_engine.segments.frame import Frame
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

PAGE = 4
init_none_hash(sha256)
HASHER = get_request_block_hasher(PAGE, sha256)


def request(tokens: list[int], salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=64)
    return Request("r", list(tokens), params, None, cache_salt=salt, block_hasher=HASHER)


TOKENS = list(range(100, 118))  # four full pages and two tokens
PLAIN = [bytes(key) for key in request(TOKENS).block_hashes]


def keys(made: Request) -> list[bytes]:
    return [bytes(key) for key in made.block_hashes]


@pytest.mark.parametrize("page", [0, 1, 3])
def test_keys_before_the_point_stay_and_all_from_it_on_change(page: int) -> None:
    made = request(TOKENS)
    rekey(made, Point.fresh(page))
    assert len(PLAIN) == 4
    assert keys(made)[:page] == PLAIN[:page]
    assert len(keys(made)) == len(PLAIN)
    assert not set(keys(made)[page:]) & set(PLAIN)


def test_pages_filled_later_are_chained_to_the_salted_ones() -> None:
    made, plain = request(TOKENS), request(TOKENS)
    rekey(made, Point.fresh(2))
    for token in range(10):
        made.append_output_token_ids(token)
        plain.append_output_token_ids(token)
    assert len(keys(made)) == len(keys(plain)) == 7
    assert keys(made)[:2] == keys(plain)[:2]
    assert not set(keys(made)[2:]) & set(keys(plain))


def test_a_plain_request_of_the_same_tokens_never_meets_them_whatever_its_salt() -> None:
    made = request(TOKENS)
    rekey(made, Point.fresh(1))
    for salt in (None, "tenant"):
        assert not set(keys(made)[1:]) & set(keys(request(TOKENS, salt)))


def test_the_same_point_gives_the_same_keys_and_another_salt_other_keys() -> None:
    point = Point.fresh(1)
    again, made, other = request(TOKENS), request(TOKENS), request(TOKENS)
    rekey(made, point)
    rekey(again, point)
    rekey(other, Point.fresh(1))
    assert keys(made) == keys(again)
    assert not set(keys(made)[1:]) & set(keys(other)[1:])


def test_one_salt_at_two_contexts_gives_different_keys() -> None:
    point = Point.fresh(1)
    made, moved = request(TOKENS), request([1, *TOKENS[1:]])
    rekey(made, point)
    rekey(moved, point)
    assert not set(keys(made)) & set(keys(moved))


def test_a_follower_with_the_same_points_finds_exactly_the_common_pages() -> None:
    points = [Point.fresh(1), Point.fresh(3)]
    first, follower = request(TOKENS), request([*TOKENS, *range(20)])
    for point in points:
        rekey(first, point)
        rekey(follower, point)
    assert keys(follower)[:4] == keys(first)
    assert len(keys(follower)) == 9


@given(st.lists(st.integers(0, 3), unique=True, max_size=4).map(sorted))
def test_unkey_restores_the_original_keys_and_applies_only_the_points_given(pages: list[int]) -> None:
    points = [Point.fresh(page) for page in pages]
    made, kept = request(TOKENS), request(TOKENS)
    for point in points:
        rekey(made, point)
    for point in points[:-1]:
        rekey(kept, point)
    unkey(made, points[:-1])
    assert keys(made) == keys(kept)
    unkey(made, [])
    assert keys(made) == PLAIN


def test_a_page_without_a_key_cannot_be_salted() -> None:
    made = request(TOKENS)
    with pytest.raises(ValueError, match="page 4 has no key; the request has 4 full pages"):
        rekey(made, Point.fresh(4))
    assert keys(made) == PLAIN


def test_fresh_salts_differ() -> None:
    assert len({Point.fresh(0).salt for _ in range(100)}) == 100


tokens_strategy = st.lists(st.integers(0, 1), max_size=24)


def chain_of(tokens: list[int], **how: Any) -> Chain:
    return Chain.of(np.array(tokens, dtype=np.int32), Disposition(**how))


@given(tokens_strategy, tokens_strategy, st.lists(st.integers(0, 6), unique=True, max_size=4).map(sorted))
def test_points_are_usable_exactly_where_the_whole_page_is_common(
    old: list[int], new: list[int], pages: list[int]
) -> None:
    chain = chain_of(old, points=tuple(Point(p, b"salt") for p in pages))
    usable = [point.page for point in chain.usable(np.array(new, dtype=np.int32), PAGE).points]
    same = [p for p in pages if len(new) >= (p + 1) * PAGE and old[: (p + 1) * PAGE] == new[: (p + 1) * PAGE]]
    assert usable == [p for p in same if len(old) >= (p + 1) * PAGE]
    assert usable == pages[: len(usable)], "a later point was kept without an earlier one"


def test_fillers_push_pages_back_so_points_count_them() -> None:
    """Tokens 0 to 7 with 4 fillers before the sixth: the second page ends with the seventh of the user's tokens."""
    filling = Filling(((5, 3),))
    filled = [0, 1, 2, 3, 4, 9, 9, 9, 5, 6, 7]
    chain = chain_of(filled, filling=filling, points=(Point(1, b"a"), Point(2, b"b")))
    assert chain.tokens.tolist() == list(range(8))
    for common, pages in ((5, []), (6, [1]), (8, [1])):
        prompt = np.array([*range(common), 55, 55, 55, 55, 55], dtype=np.int32)
        assert [p.page for p in chain.usable(prompt, PAGE).points] == pages
    whole = chain.usable(np.array([*range(8), 55, 55], dtype=np.int32), PAGE)
    assert whole.filling == filling


STEPS = Frame(((4, 10), (9, 20)))


@pytest.mark.parametrize(
    ("points", "common", "steps"),
    [
        ((0,), 12, ((4, 10), (9, 20))),
        ((1,), 12, ((4, 10), (9, 20))),
        ((2,), 12, ((9, 20),)),
        ((), 12, ()),
        ((1,), 9, ((4, 10),)),
        ((1,), 10, ((4, 10), (9, 20))),
        ((1,), 7, ()),
        ((1, 2), 10, ((4, 10),)),  # page 2 is not usable whole, so its salt is gone, and its step with it
        ((1, 2), 12, ((4, 10), (9, 20))),
    ],
)
def test_positions_are_shifted_only_where_keys_are_salted_and_text_is_common(
    points: tuple[int, ...], common: int, steps: tuple[tuple[int, int], ...]
) -> None:
    chain = chain_of(list(range(12)), frame=STEPS, points=tuple(Point(p, b"s") for p in points))
    prompt = np.array([*range(common), 77, 77, 77, 77, 77], dtype=np.int32)
    assert chain.usable(prompt, PAGE).frame.steps == steps


@pytest.mark.parametrize("index", [0, 4, 8, 12])
def test_what_lies_before_an_index_is_what_begins_there(index: int) -> None:
    points = tuple(Point(p, b"s") for p in (0, 1, 2))
    lies = Disposition(Filling(((3, 2), (8, 1))), STEPS, points).before(index, PAGE)
    assert lies.filling.inserts == tuple(i for i in ((3, 2), (8, 1)) if i[0] < index)
    assert lies.frame.steps == tuple(s for s in STEPS.steps if s[0] < index)
    assert [p.page for p in lies.points] == [p for p in (0, 1, 2) if p * PAGE < index]
