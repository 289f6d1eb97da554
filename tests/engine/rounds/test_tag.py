"""The tag survives its way through JSON-like request parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.rounds.tag import EngineTag

ids = st.text("abc:._-0", min_size=1, max_size=8)
tags = st.builds(
    EngineTag,
    round_id=ids,
    agent_id=ids,
    session_id=ids,
    parent=ids,
    round_size=st.none() | st.integers(1, 4096),
    together=st.booleans(),
    fidelity=st.sampled_from(["exact", "balanced", "fast"]),
    backend=st.none() | st.just("master"),
    options=st.dictionaries(st.just("first"), st.integers(0, 64)),
    segments=st.lists(st.integers(0, 99)).map(lambda cuts: tuple(sorted(cuts))),
)


@given(tags)
def test_a_tag_comes_back_from_json_as_it_went(tag: EngineTag) -> None:
    assert EngineTag.from_params(json.loads(json.dumps(tag.to_params()))) == tag


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": True}, {"tokendance": None}])
def test_requests_without_a_tag_have_none(params: dict[str, Any] | None) -> None:
    assert EngineTag.from_params(params) is None
