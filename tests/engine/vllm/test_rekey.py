"""Approximate pages under keys of their own, on vLLM's real requests and hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.rekey import Chain, Point, rekey, unkey
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


@given(tokens_strategy, tokens_strategy, st.lists(st.integers(0, 6), unique=True, max_size=4).map(sorted))
def test_points_are_usable_exactly_where_the_whole_page_is_common(
    old: list[int], new: list[int], pages: list[int]
) -> None:
    chain = Chain(np.array(old, dtype=np.int32), tuple(Point(p, b"salt") for p in pages))
    usable = [point.page for point in chain.usable(np.array(new, dtype=np.int32), PAGE)]
    same = [p for p in pages if len(new) >= (p + 1) * PAGE and old[: (p + 1) * PAGE] == new[: (p + 1) * PAGE]]
    assert usable == [p for p in same if len(old) >= (p + 1) * PAGE]
    assert usable == pages[: len(usable)], "a later point was kept without an earlier one"
