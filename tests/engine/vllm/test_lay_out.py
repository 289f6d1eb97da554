"""A request with fillers is, to vLLM, a request of the filled tokens: real requests and hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from planned_rounds import PAGE, make_request
from tiny_rounds import FILLER
from tokendance_engine.adapters.vllm.rekey import Chain, Disposition, Point, lay_out, rekey
from tokendance_engine.segments.filling import UNFILLED, Filling, fill
from tokendance_engine.segments.frame import Frame
from vllm.v1.request import Request

TOKENS = np.arange(100, 170, dtype=np.int32)


@st.composite
def fillings(draw: st.DrawFn) -> Filling:
    made = UNFILLED
    places = st.lists(st.tuples(st.integers(1, len(TOKENS)), st.integers(0, PAGE - 1)), max_size=3)
    for index, count in sorted(draw(places)):
        made = made.plus(index + made.count, count)
    return made


def state(request: Request) -> tuple[object, ...]:
    """All that vLLM's scheduler reads of a prompt."""
    return (
        request.prompt_token_ids,
        request.num_prompt_tokens,
        request.num_tokens,
        list(request.all_token_ids),
        list(request.output_token_ids),
        [bytes(key) for key in request.block_hashes],
    )


def fresh(filling: Filling, *points: Point) -> Request:
    """A request that arrived with the filled tokens."""
    made = make_request("r", fill(TOKENS, filling, FILLER).tolist())
    for point in points:
        rekey(made, point)
    return made


@given(fillings())
def test_it_is_the_same_as_a_fresh_request_of_the_filled_tokens(filling: Filling) -> None:
    request = make_request("r", TOKENS.tolist())
    filled = lay_out(request, TOKENS, Disposition(filling), FILLER)
    assert filled.tolist() == fill(TOKENS, filling, FILLER).tolist()
    assert state(request) == state(fresh(filling))


@given(fillings(), st.lists(fillings(), max_size=3))
def test_only_the_last_of_several_layouts_counts(last: Filling, before: list[Filling]) -> None:
    request = make_request("r", TOKENS.tolist())
    for filling in (*before, last):
        lay_out(request, TOKENS, Disposition(filling, Frame(((20, 5),)), (Point(0, b"x"),)), FILLER)
    lay_out(request, TOKENS, Disposition(last), FILLER)
    assert state(request) == state(fresh(last))


@given(fillings())
def test_going_back_to_no_fillers_gives_the_request_as_it_came(filling: Filling) -> None:
    request = make_request("r", TOKENS.tolist())
    lay_out(request, TOKENS, Disposition(filling, points=(Point(1, b"x"), Point(3, b"y"))), FILLER)
    assert lay_out(request, TOKENS, Disposition(), FILLER).tolist() == TOKENS.tolist()
    assert state(request) == state(make_request("r", TOKENS.tolist()))


def test_keys_are_salted_in_pages_of_the_filled_prompt() -> None:
    filling = Filling(((30, 2),))
    request = make_request("r", TOKENS.tolist())
    lay_out(request, TOKENS, Disposition(filling, points=(Point(2, b"x"),)), FILLER)
    assert state(request) == state(fresh(filling, Point(2, b"x")))
    plain = [bytes(key) for key in fresh(filling).block_hashes]
    mine = [bytes(key) for key in request.block_hashes]
    assert mine[:2] == plain[:2]
    assert not set(mine[2:]) & set(plain)


@given(fillings(), st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_an_answer_goes_on_after_the_filled_prompt_and_is_keyed_like_it(
    filling: Filling, answer: list[int]
) -> None:
    request, other = make_request("r", TOKENS.tolist()), fresh(filling)
    lay_out(request, TOKENS, Disposition(filling), FILLER)
    for token in answer:
        request.append_output_token_ids(token)
        other.append_output_token_ids(token)
    assert state(request) == state(other)
    assert list(request.all_token_ids)[request.num_prompt_tokens :] == answer


def test_the_users_own_list_of_tokens_is_left_alone() -> None:
    """The front end still counts usage and echoes the prompt with it."""
    users = TOKENS.tolist()
    request = make_request("r", [])
    request = Request("r", users, request.sampling_params, None, block_hasher=request._block_hasher)
    lay_out(request, TOKENS, Disposition(Filling(((30, 2),))), FILLER)
    assert users == TOKENS.tolist()
    assert request.num_prompt_tokens == len(users) + 2


@st.composite
def dispositions(draw: st.DrawFn, pages: int = 6) -> Disposition:
    """Fillers and salts anywhere in a prompt of so many pages; salts come from a few, so that two may agree."""
    at = sorted(draw(st.sets(st.integers(0, pages * PAGE - 20), max_size=3)))
    inserts = tuple((index, draw(st.integers(1, 3))) for index in at if index % 7 == 0)
    salted = sorted(draw(st.sets(st.integers(0, pages - 2), max_size=2)))
    points = tuple(Point(page, draw(st.sampled_from([b"a", b"b"]))) for page in salted)
    return Disposition(Filling(inserts), points=points)


@given(st.lists(dispositions(), min_size=1, max_size=4))
def test_keys_kept_from_the_layout_before_are_those_computed_from_scratch(layouts: list[Disposition]) -> None:
    prompt = np.arange(6 * PAGE + 3, dtype=np.int32)
    step, before = make_request("step", prompt.tolist()), Disposition()
    for lies in layouts:
        lay_out(step, prompt, lies, 999, before, PAGE)
        scratch = make_request("scratch", prompt.tolist())
        lay_out(scratch, prompt, lies, 999)
        assert step.block_hashes == scratch.block_hashes
        assert list(step.all_token_ids) == list(scratch.all_token_ids)
        before = lies


@given(dispositions(), st.integers(0, 6 * PAGE + 3), st.integers(0, 40))
def test_keys_that_a_chain_remembers_are_those_computed_from_scratch(
    lies: Disposition, common: int, more: int
) -> None:
    prompt = np.arange(6 * PAGE + 3, dtype=np.int32)
    first = make_request("first", prompt.tolist())
    filled = lay_out(first, prompt, lies, 999)
    chain = Chain.of(filled, lies, first.block_hashes)
    then = np.concatenate([prompt[:common], np.arange(5000, 5000 + more, dtype=np.int32)])
    usable = chain.usable(then, PAGE)
    keys = chain.usable_keys(then, usable, PAGE)
    quick, scratch = make_request("quick", then.tolist()), make_request("scratch", then.tolist())
    lay_out(quick, then, usable, 999, Disposition(), PAGE, keys)
    lay_out(scratch, then, usable, 999)
    assert quick.block_hashes == scratch.block_hashes
    if common == len(prompt) and not more:
        assert len(keys) == len(first.block_hashes), "nothing is gained"


def test_what_lies_alike_keeps_its_keys_and_is_not_hashed_again() -> None:
    one = Disposition(Filling(((3 * PAGE + 1, 2),)), points=(Point(1, b"a"),))
    assert one.same_pages(one, PAGE) > 1000
    assert one.same_pages(Disposition(one.filling, points=(Point(1, b"b"),)), PAGE) == 1
    assert one.same_pages(Disposition(points=one.points), PAGE) == 3
