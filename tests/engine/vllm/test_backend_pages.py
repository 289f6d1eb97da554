"""Backends in the scheduler half: where their KV comes from, who finds whose pages, one member at a time."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, out
from scheduled_rounds import Loop
from tiny_rounds import Prompt, private

HISTORIES = (30, 75, 140)


def first_round() -> list[Prompt]:
    return [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(HISTORIES)]


def grown(made: list[Prompt]) -> list[Prompt]:
    return [[*p[:-1], private(m, 300, 20), out(2, 90), MARKER] for m, p in enumerate(made)]


def play(loop: Loop, made: list[Prompt], **how: Any) -> list[dict[str, Any]]:
    asked = {"fidelity": "fast", "placement": "copy", "round_size": len(made), **how}
    requests = [loop.add(p, f"a{i}", **asked) for i, p in enumerate(made)]
    loop.run(200)
    return [loop.reports[r.request_id] for r in requests]


WAYS: list[dict[str, Any]] = [
    {"fidelity": "fast"},
    {"fidelity": "balanced"},
    {"backend": "epic"},
    {"backend": "epic", "options": {"first": 4}},
    {"backend": "epic", "options": {"source": "master"}},
    {"backend": "cacheblend"},
    {"backend": "cacheblend", "options": {"percent": 16}},
    {"backend": "cacheblend-blocks", "options": {"source": "master"}},
]


@pytest.mark.parametrize("other", range(len(WAYS)))
def test_only_the_same_backend_with_the_same_options_finds_approximate_pages(
    monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    for i, way in enumerate(WAYS):
        loop = Loop(monkeypatch, pages=301)
        assert all(r["reused_tokens"] > 0 for r in play(loop, first_round(), **way))
        for report, history in zip(play(loop, grown(first_round()), **WAYS[other]), HISTORIES, strict=True):
            assert (report["approximate_cached_tokens"] > 0) == (i == other)
            if i != other:
                assert report["cached_tokens"] <= history + 32, "more than the exact history"
            assert report["reused_tokens"] > 0
        assert loop.side.reset()


def test_all_reads_nothing_approximate(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, pages=301)
    play(loop, first_round())
    for report in play(loop, first_round(), backend="all"):
        assert report["approximate_cached_tokens"] == report["reused_tokens"] == 0
        assert report["recomputed_tokens"] > 0


def test_histories_stored_by_another_backend_come_back_up_to_where_they_are_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, pages=301, cpu_bytes=1 << 30)
    play(loop, first_round(), fidelity="fast")
    for fidelity, mine in (("balanced", False), ("balanced", True)):
        loop.side._families.give_way(1 << 30)
        assert loop.manager.reset_prefix_cache()
        loop.tape.rows[:] = -1
        for report, history in zip(play(loop, first_round(), fidelity=fidelity), HISTORIES, strict=True):
            assert (report["restored_tokens"] > history) == mine
            assert (report["approximate_cached_tokens"] > 0) == mine


@pytest.mark.parametrize("backend", ["epic", "cacheblend"])
def test_what_a_backend_changes_in_the_worker_or_takes_from_elsewhere_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    loop = Loop(monkeypatch, pages=301, cpu_bytes=1 << 30)
    play(loop, first_round(), backend=backend)
    assert not loop.store
    assert not loop.kept
    play(loop, first_round(), fidelity="fast")
    assert len(loop.store) == 3


def test_segments_alone_are_computed_once_per_session_and_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, pages=301)
    made, rows = first_round(), []
    for prompts in (made, grown(made)):
        requests = [loop.add(p, f"a{i}", backend="epic", round_size=3) for i, p in enumerate(prompts)]
        while loop.waiting or loop.running:
            rows.append(sum(job.tokens for job in loop.step().masters))
        assert all(loop.reports[r.request_id]["reused_tokens"] > 0 for r in requests)
    first, second = [n for n in rows if n]
    assert first % PAGE == (90 + 90) % PAGE
    assert second == 90


@pytest.mark.parametrize("backend", ["master", "epic", "cacheblend"])
def test_serial_members_are_prepared_one_per_step(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    for execution, steps in (("serial", [1, 1, 1]), ("collective", [3])):
        loop = Loop(monkeypatch, pages=301)
        loop.side._work.limit = 10_000
        for i, prompt in enumerate(first_round()):
            loop.add(prompt, f"a{i}", backend=backend, fidelity="fast", execution=execution, round_size=3)
        seen = []
        while loop.waiting or loop.running:
            seen.append(len(loop.step().members))
        assert [n for n in seen if n] == steps
        assert {r["execution"] for r in loop.reports.values()} == {execution}
        assert {r["backend"] for r in loop.reports.values()} == {backend}


def test_a_released_session_loses_every_master(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, pages=301)
    for backend in ("master", "epic"):
        play(loop, first_round(), backend=backend)
    families = loop.side._families
    assert sorted(f["source"] for f in families.snapshot()) == ["alone", "master"]
    families.release_family(("", "s"))
    assert not families.snapshot()
    assert loop.manager.reset_prefix_cache(), "a master kept pages"
