"""Which pages nobody may depend on yet, on vLLM's real requests and hashes."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.rekey import Point, rekey
from tokendance_engine.adapters.vllm.unwritten import Unwritten
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request, RequestStatus

PAGE = 4
init_none_hash(sha256)
HASHER = get_request_block_hasher(PAGE, sha256)
HISTORY = list(range(100, 120))


def request(name: str, tokens: list[int], computed: int | None = None) -> Request:
    """Running with `computed` tokens, or waiting."""
    made = Request(name, list(tokens), SamplingParams(max_tokens=64), None, block_hasher=HASHER)
    if computed is not None:
        made.status, made.num_computed_tokens = RequestStatus.RUNNING, computed
    return made


@pytest.mark.parametrize(("computed", "waits"), [(0, True), (8, True), (11, True), (12, False), (20, False)])
def test_a_hit_is_in_progress_while_a_running_request_has_not_computed_all_of_it(
    computed: int, waits: bool
) -> None:
    unwritten = Unwritten(PAGE)
    unwritten.add(request("other", [*HISTORY, 1, 2], computed))
    assert unwritten.in_progress(request("mine", [*HISTORY, 3, 4]), cached=12) is waits


def test_other_text_other_keys_and_waiting_requests_are_nothing_to_wait_for() -> None:
    unwritten = Unwritten(PAGE)
    mine = request("mine", HISTORY)
    salted = request("salted", HISTORY, 0)
    rekey(salted, Point.fresh(0))
    for other in (mine, salted, request("text", [7, *HISTORY], 0), request("waiting", HISTORY)):
        unwritten.add(other)
    assert not unwritten.in_progress(mine, cached=16)


def test_an_ended_request_is_forgotten() -> None:
    unwritten = Unwritten(PAGE)
    other = request("other", HISTORY, 0)
    unwritten.add(other)
    unwritten.drop(other)
    unwritten.drop(other)
    assert not unwritten.in_progress(request("mine", HISTORY), cached=16)


def test_only_running_requests_take_a_seat() -> None:
    unwritten = Unwritten(PAGE)
    running = request("running", HISTORY, 4)
    for each in (running, request("waiting", HISTORY), request("other", HISTORY, 20)):
        unwritten.add(each)
    assert unwritten.running() == 2
    unwritten.drop(running)
    assert unwritten.running() == 1
