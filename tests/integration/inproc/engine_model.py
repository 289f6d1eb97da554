"""Another architecture and page size, named by `TOKENDANCE_TINY` (shape:page size): same promises, same code."""

from __future__ import annotations

import os

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
_SHAPE, _, _PAGE = os.environ.get("TOKENDANCE_TINY", "qwen2:64").partition(":")
SETTINGS = {"shape": _SHAPE, "block_size": int(_PAGE)}


def test_recomputing_everything_equals_full_prefill(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(150, 171, 203), blocks=(150, 150, 150))
    truth = rounds.plain(prompts)
    assert rounds.worker.status()["reuse"], rounds.worker.status()["reason"]
    got = rounds.play(prompts, backend="all")
    assert got.tokens == truth
    assert all(r["recomputed_tokens"] > 0 for r in got.reports)


def test_fast_reuses(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(150, 171, 203), blocks=(150, 150, 150))
    assert all(r["reused_tokens"] > 0 for r in rounds.play(prompts, fidelity="fast").reports)
