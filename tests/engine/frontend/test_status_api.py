"""What the status route says of several workers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from tokendance_engine.frontend.status_api import merge_workers

ON: dict[str, Any] = {"reuse": True, "reason": None, "store": {"used_bytes": 5}}
OFF: dict[str, Any] = {"reuse": False, "reason": "layer 3 has a sliding window", "store": None}


def test_all_workers_with_reuse_are_told_of_as_the_first() -> None:
    assert merge_workers([ON, {**ON, "store": None}]) == {**ON, "workers": 2}


@pytest.mark.parametrize("answers", [[ON, OFF], [OFF, ON]])
def test_one_worker_that_refuses_is_the_one_that_is_heard(answers: list[Any]) -> None:
    assert merge_workers(answers) == {**OFF, "workers": 2}


def test_no_answer_is_said() -> None:
    assert merge_workers([]) == {"unavailable": "no worker answered"}
