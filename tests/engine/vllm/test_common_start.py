"""A system prompt that all members of a session start with is named, so that the store keeps it once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from page_layers import HEADS, CpuWriter, layer_of, rope_table
from planned_rounds import MARKER, PAGE, out
from scheduled_rounds import Loop
from tiny_rounds import Prompt, private
from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV
from tokendance_engine.adapters.vllm.mirror_jobs import CaptureJob, MirrorWork, Owner, RestoreJob
from tokendance_engine.adapters.vllm.mirror_worker import MirrorWorker
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.keys import Keys, Scope
from tokendance_engine.storage.layout import Layout, Model
from tokendance_engine.storage.positions import Positions
from tokendance_engine.storage.store import Store

SIZE, DIM = 32, 64
SYSTEM = tuple(range(600, 600 + 2 * PAGE + 5))


def round_of(system: tuple[int, ...], *histories: int) -> list[Prompt]:
    return [[(*system, *private(m, 0, n)), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(histories)]


def captured(
    monkeypatch: pytest.MonkeyPatch, loop: Loop, made: list[Prompt], names: list[str], **tag: Any
) -> dict[str, CaptureJob]:
    """Every agent's capture of one round."""
    jobs: dict[str, CaptureJob] = {}
    take = loop.side.mirrors.take

    def taken() -> Any:
        work = take()
        jobs.update({job.owner.agent: job for job in (work.captures if work is not None else [])})
        return work

    monkeypatch.setattr(loop.side.mirrors, "take", taken)
    how = {"fidelity": "fast", "round_size": len(made), **tag}
    for name, prompt in zip(names, made, strict=True):
        loop.add(prompt, name, **how)
    loop.run(200)
    return jobs


def stored(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch, cpu_bytes=1 << 30)


@pytest.mark.parametrize("placement", ["copy", "shared"])
def test_whole_pages_of_the_system_prompt_are_common(monkeypatch: pytest.MonkeyPatch, placement: str) -> None:
    jobs = captured(
        monkeypatch,
        stored(monkeypatch),
        round_of(SYSTEM, 30, 75, 140),
        ["a", "b", "c"],
        placement=placement,
    )
    assert [job.common for job in jobs.values()] == [2 * PAGE] * 3
    for job in jobs.values():
        assert job.approximate_from is None or job.common <= job.approximate_from
        assert job.common <= job.taken.spans[:, 1].min(initial=len(job.tokens))


def test_histories_that_differ_from_the_first_token_on_have_nothing_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = captured(monkeypatch, stored(monkeypatch), round_of((), 30, 75), ["a", "b"])
    assert [job.common for job in jobs.values()] == [0, 0]


def test_an_agent_alone_has_nothing_in_common_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    for _ in range(2):
        jobs = captured(monkeypatch, loop, round_of(SYSTEM, 75), ["a"])
        assert jobs["a"].common == 0


def test_what_comes_from_the_master_is_not_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_first: list[Prompt] = [[out(0, 90), out(1, 90), private(m, 0, 40)] for m in range(3)]
    jobs = captured(monkeypatch, stored(monkeypatch), shared_first, ["a", "b", "c"])
    for job in jobs.values():
        assert job.common <= job.taken.spans[:, 1].min(initial=len(job.tokens))


def test_a_reset_forgets_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = stored(monkeypatch)
    captured(monkeypatch, loop, round_of(SYSTEM, 30, 75), ["a", "b"])
    loop.side.mirrors.reset()
    assert captured(monkeypatch, loop, round_of(SYSTEM, 30), ["a"])["a"].common == 0


def test_pages_that_members_share_are_stored_once_and_come_back_bit_for_bit() -> None:
    kind, rope = CpuWriter("vec"), rope_table(DIM)
    kv = CpuPagedKV([layer_of(kind, torch.float32, SIZE, DIM, rope, pages=16, seed=i) for i in range(3)])
    layout = Layout(len(kv.layers), HEADS, DIM, "float32")
    store = Store(Keys(Model("m", layout), Scope.SESSION, b"k" * 32), 1 << 24, remake=kv.remake)
    worker, none = MirrorWorker(kv, store), Taken(-1, np.zeros((0, 3), dtype=np.int64))
    tables = {"a": [2, 0], "b": [2, 4], "c": [6, 8]}  # c computed the same start in a page of its own
    for agent, pages in tables.items():
        own = {"a": 100, "b": 200, "c": 300}[agent]
        tokens = np.concatenate([np.arange(SIZE), own + np.arange(20)]).astype(np.int32)
        table = np.array(pages, dtype=np.int32)
        job = CaptureJob(agent, Owner("", "s", agent), tokens, table, Positions.plain(), none, 0, None, SIZE)
        worker.run(MirrorWork(captures=[job]))
    assert not worker.faults
    store.check()
    rows = 2 * SIZE + 3 * 20  # two starts that differ in bits
    assert rows * layout.row_bytes < store.report().used < (rows + 3) * layout.row_bytes
    for agent, pages in tables.items():
        into = np.array([10, 12], dtype=np.int32)
        worker.run(MirrorWork(restores=[RestoreJob(agent, Owner("", "s", agent), into, 0, SIZE + 20)]))
        assert not worker.faults
        for layer in kv.layers:
            then, now = (kv.read(layer, torch.tensor(p)) for p in (pages, into.tolist()))
            for was, got in zip(then, now, strict=True):
                assert torch.equal(was[: SIZE + 20], got[: SIZE + 20])
