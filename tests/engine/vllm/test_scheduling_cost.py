"""How much Python the scheduler half runs for a round: counted in function calls, which no busy machine changes."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER
from scheduled_rounds import Loop
from tiny_rounds import Prompt, private

HOOKS = ("on_new_request", "hold", "seat", "build_meta", "hear", "finish")


def counted(loop: Loop, profile: cProfile.Profile) -> None:
    """Profile the hooks that vLLM calls, and nothing of the loop around them."""

    def wrap(hook: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            profile.enable()
            try:
                return hook(*args)
            finally:
                profile.disable()

        return wrapped

    for name in HOOKS:
        setattr(loop.side, name, wrap(getattr(loop.side, name)))


def calls_per_member(patch: pytest.MonkeyPatch, members: int, turns: int = 2) -> float:
    """Function calls per member of the last of `turns` rounds: history, six new blocks of 60 tokens each."""
    loop = Loop(patch, pages=members * 80 + 300)
    loop.side._admission.preparer.max_seqs = loop.side._max_seqs = members  # type: ignore[union-attr]
    loop.side._work.limit = 1 << 16
    prompts: list[Prompt] = [[private(m, 0, 100 + 3 * (m % 20))] for m in range(members)]
    profile = cProfile.Profile()
    for turn in range(turns):
        if turn == turns - 1:
            counted(loop, profile)
        blocks = [tuple(900_000 + 10_000 * turn + 100 * b + i for i in range(60)) for b in range(6)]
        requests = [
            loop.add([*p, *blocks, MARKER], f"a{i}", answer=1, fidelity="balanced", round_size=members)
            for i, p in enumerate(prompts)
        ]
        loop.run(400)
        assert all(loop.reports[r.request_id]["reused_tokens"] > 200 for r in requests)
        prompts = [[*p, *blocks, private(m, 500, 20)] for m, p in enumerate(prompts)]
    return float(pstats.Stats(profile).total_calls) / members  # type: ignore[attr-defined]


def test_the_cost_of_a_member_does_not_grow_with_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = calls_per_member(monkeypatch, 6), calls_per_member(monkeypatch, 24)
    print(f"calls per member: {few:.0f} of 6, {many:.0f} of 24")
    assert many < 1.25 * few


def test_a_member_costs_a_bounded_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 3,600 for a member with 6 new blocks and some 50 pages; twice that would be a loop over something."""
    assert calls_per_member(monkeypatch, 6) < 7_200
