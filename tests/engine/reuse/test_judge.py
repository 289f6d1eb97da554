"""Asking backends between restore and virtual batch, over pages and a model of a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.reuse.apart import runs_apart
from tokendance_engine.reuse.backends import Backend, Option, Piece, registry
from tokendance_engine.reuse.collector import collect, compute
from tokendance_engine.reuse.judge import Judge
from tokendance_engine.reuse.ports import Ask, MemberJob, PageTable, Run
from tokendance_engine.segments.key import segment_key, split
from tokendance_engine.segments.transcript import Transcript

PAGE = 4
LAYERS = 3


class ToyModel:
    """Pages of K and V, one head of one dimension, of a model whose layer n sums n times over the context.

    Implements every port of the collector; a layer writes before it reads, and `keys` stops before it writes.
    """

    def __init__(self, max_tokens: int = 10_000, max_runs: int = 10_000) -> None:
        self.max_tokens, self.max_runs, self.layers = max_tokens, max_runs, LAYERS
        self.kv = torch.full((LAYERS, 2, 64, PAGE), torch.nan, dtype=torch.float64)
        self.computed = self.checked = 0

    def _at(self, pages: PageTable, at: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(pages[at // PAGE].astype(np.int64)), torch.from_numpy(at % PAGE)

    def _pass(self, runs: Sequence[Run], layers: int) -> list[torch.Tensor]:
        hidden = [torch.from_numpy(run.tokens.astype(np.float64)) for run in runs]
        for layer in range(layers):
            for run, h in zip(runs, hidden, strict=True):
                page, slot = self._at(run.pages, run.written())
                self.kv[layer, 0, page, slot], self.kv[layer, 1, page, slot] = h, h + 0.5
            done = []
            for run, h in zip(runs, hidden, strict=True):
                page, slot = self._at(run.pages, np.arange(run.end))
                done.append(h + 0.01 * self.kv[layer, 0, page, slot].cumsum(0)[run.start :])
            hidden = done
        return hidden

    def forward(self, runs: Sequence[Run]) -> None:
        self.computed += sum(len(run.tokens) for run in runs)
        self._pass(runs, LAYERS)

    def keys(self, runs: Sequence[Run], layer: int) -> torch.Tensor:
        self.checked += sum(len(run.tokens) for run in runs)
        return torch.cat(self._pass(runs, layer))[:, None, None]

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        return scores

    def restore(self, jobs: Sequence[MemberJob]) -> None:
        for job in jobs:
            for row, index, n in job.moves[:, :3].tolist():
                source = self._at(job.master_pages, np.arange(row, row + n))
                target = self._at(job.pages, np.arange(index, index + n))
                self.kv[:, :, target[0], target[1]] = self.kv[:, :, source[0], source[1]].clone()

    def read(
        self, layer: int, pages: PageTable, at: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        page, slot = self._at(pages, at)
        found = self.kv[layer][:, page, slot].clone()
        return found[0][:, None, None], found[1][:, None, None]

    def write(
        self, layer: int, pages: PageTable, at: npt.NDArray[np.int64], key: torch.Tensor, value: torch.Tensor
    ) -> None:
        page, slot = self._at(pages, at)
        self.kv[layer, 0, page, slot], self.kv[layer, 1, page, slot] = key[:, 0, 0], value[:, 0, 0]

    def turn(
        self, layer: int, keys: torch.Tensor, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        return keys


BLOCKS = [
    np.arange(10, 21, dtype=np.int32),
    np.arange(30, 37, dtype=np.int32),
    np.arange(50, 62, dtype=np.int32),
]


def segments_alone() -> Transcript:
    transcript = Transcript(np.arange(1, 1 + 2 * PAGE, dtype=np.int32), apart=PAGE)
    for block in BLOCKS:
        transcript.append(segment_key(block), block)
    transcript.check()
    return transcript


def jobs_of(
    backend: str,
    round_id: str = "r",
    orders: Sequence[Sequence[int]] = ((0, 1, 2),) * 3,
    first: int = 0,
    **options: Any,
) -> list[MemberJob]:
    """Members with private histories of different lengths, and the same blocks."""
    transcript, made = segments_alone(), []
    for member, order in enumerate(orders):
        history = 3 + 2 * member
        prompt = [100 * (first + member + 1) + i for i in range(history)]
        segments, moves = [], []
        for which in order:
            row = next(e.row for e in transcript.entries if e.key == segment_key(BLOCKS[which]))
            start, n = len(prompt), len(BLOCKS[which])
            segments.append((start, start + n, row))
            moves.append((row, start, n, 0, 0))
            prompt += BLOCKS[which].tolist()
        shared = len(prompt)
        prompt += [7] * (2 + -(shared + 2) % PAGE)
        options = {**{k: o.default for k, o in registry._find(backend).OPTIONS.items()}, **options}
        ask = Ask(
            backend, options, ("", "s"), round_id, f"a{member}", np.array(prompt, dtype=np.int32),
            np.array(segments), np.array([(0, history), (shared, len(prompt))]),
        )  # fmt: skip
        table = np.arange(20 + 14 * member, 20 + 14 * member + len(prompt) // PAGE, dtype=np.int32)
        made.append(
            MemberJob(f"m{member}", 1, np.arange(20, dtype=np.int32), table, np.array(moves), [], ask)
        )
    return made


def opened(max_tokens: int = 10_000, max_runs: int = 10_000) -> ToyModel:
    """A model whose pages hold the segments alone."""
    model, transcript = ToyModel(max_tokens, max_runs), segments_alone()
    compute(runs_apart(transcript, 0, transcript.rows, np.arange(20, dtype=np.int32)), model)
    model.computed = 0
    return model


def full_prefill(job: MemberJob) -> ToyModel:
    model = ToyModel()
    assert job.ask is not None
    model.forward([Run(job.ask.prompt, 0, job.pages)])
    return model


def rows(model: ToyModel, job: MemberJob) -> torch.Tensor:
    assert job.ask is not None
    at = np.arange(len(job.ask.prompt))
    return torch.stack([torch.cat(model.read(n, job.pages, at)) for n in range(LAYERS)])


@given(st.integers(1, 60), st.integers(1, 60))
def test_segments_that_stand_apart_see_the_preamble_and_themselves(limit: int, max_tokens: int) -> None:
    transcript, model = segments_alone(), ToyModel(max_tokens)
    pages = np.arange(20, dtype=np.int32)
    for start in range(0, transcript.rows, limit):
        compute(runs_apart(transcript, start, min(start + limit, transcript.rows), pages), model)
    assert model.computed == len(transcript.preamble) + sum(map(len, BLOCKS)), (
        "gaps were computed, or rows twice"
    )
    for entry in transcript.entries:
        if not entry.key:
            continue
        whole = np.concatenate([transcript.preamble, entry.tokens]).astype(np.int32)
        alone = ToyModel()
        alone.forward([Run(whole, 0, pages)])
        n = len(transcript.preamble)
        for layer in range(LAYERS):
            truth = alone.read(layer, pages, np.arange(n, len(whole)))
            got = model.read(layer, pages, np.arange(entry.row, entry.row + len(entry.tokens)))
            assert all(torch.allclose(a, b) for a, b in zip(got, truth, strict=True))
        assert transcript.frame.at(np.array([entry.row, entry.row + 3])).tolist() == [n, n + 3]


def test_equal_segments_that_stand_apart_are_one_row() -> None:
    transcript = segments_alone()
    prompt = np.concatenate([BLOCKS[0], BLOCKS[0]])
    found = transcript.match(prompt, split(prompt, [len(BLOCKS[0])]))
    assert found[0] == found[1] == len(transcript.preamble)
    assert transcript.positions == len(transcript.preamble) + max(map(len, BLOCKS))
    with pytest.raises(ValueError, match="a preamble of 3 tokens does not fill pages of 4"):
        Transcript(np.arange(3, dtype=np.int32), apart=4)


ORDERS = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]


@pytest.mark.parametrize("backend", ["cacheblend", "cacheblend-blocks"])
@given(st.integers(0, 100), st.integers(1, 2), st.integers(1, 50), st.integers(1, 9))
def test_members_one_by_one_get_what_members_together_get(
    backend: str, percent: int, layer: int, max_tokens: int, max_runs: int
) -> None:
    jobs = jobs_of(backend, orders=ORDERS, percent=percent, layer=layer)
    together, serial = opened(max_tokens, max_runs), opened()
    one = collect(jobs, together, together, Judge(together, together)).verdicts
    judge, other = Judge(serial, serial), {}
    for job in jobs:
        other |= collect([job], serial, serial, judge).verdicts
    assert one == other
    assert torch.allclose(together.kv, serial.kv, equal_nan=True, atol=1e-9)
    assert together.checked == sum(v.checked for v in one.values()) > 0
    fresh = sum(int((a.ask.compute[:, 1] - a.ask.compute[:, 0]).sum()) for a in jobs if a.ask is not None)
    assert together.computed == fresh + sum(v.chosen for v in one.values())


@pytest.mark.parametrize("backend", ["cacheblend", "cacheblend-blocks"])
def test_choosing_everything_is_a_full_prefill(backend: str) -> None:
    jobs, model = jobs_of(backend, percent=100), opened()
    collect(jobs, model, model, Judge(model, model))
    for job in jobs:
        assert torch.allclose(rows(model, job), rows(full_prefill(job), job))


def test_the_first_member_with_a_segment_chooses_for_all() -> None:
    jobs, model = (
        jobs_of("cacheblend-blocks", orders=[(0, 1), (1, 0), (2, 1, 0)], percent=50, block=4),
        opened(),
    )
    verdicts = collect(jobs, model, model, Judge(model, model)).verdicts
    assert [verdicts[f"m{i}"].checked > 0 for i in range(3)] == [True, False, True]
    assert verdicts["m0"].chosen == verdicts["m1"].chosen > 0


def test_the_check_leaves_no_trace_but_exact_kv_below_its_layer() -> None:
    """With nothing chosen, the rows of the check layer and above are those that were restored."""
    jobs, model = jobs_of("cacheblend", percent=0, layer=2), opened()
    before = ToyModel()
    before.kv = model.kv.clone()
    before.restore(jobs)
    collect(jobs, model, model, Judge(model, model))
    for job in jobs:
        at = np.concatenate([np.arange(m[1], m[1] + m[2]) for m in job.moves.tolist()])
        assert torch.equal(model.read(2, job.pages, at)[0], before.read(2, job.pages, at)[0])
        assert torch.allclose(model.read(1, job.pages, at)[0], full_prefill(job).read(1, job.pages, at)[0])


class Offset(Backend):
    """Adds what the last member's segment lacked."""

    name = "offset"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    corrects = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[tuple[bytes, int], Any] = {}

    def covers(self, piece: Piece) -> bool:
        return (piece.segment, 0) in self.seen

    def correct(self, piece: Piece, layer: int, key: torch.Tensor, value: torch.Tensor) -> Any:
        more = self.seen[piece.segment, layer]
        return key + more[0], value + more[1]

    def observe(self, piece: Piece, layer: int, restored: Any, computed: Any) -> None:
        self.seen[piece.segment, layer] = [b - a for a, b in zip(restored, computed, strict=True)]


@pytest.fixture
def _offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._loaded, "offset", Offset)


@pytest.mark.usefixtures("_offset")
def test_what_is_learned_from_a_round_serves_the_next_one_only() -> None:
    model = opened()
    judge = Judge(model, model)
    for job in jobs_of("offset", "r1"):  # one by one, which must not matter
        verdict = collect([job], model, model, judge).verdicts[job.request_id]
        assert verdict.chosen == sum(map(len, BLOCKS)), (
            "nothing was known, or what this round has taught was used"
        )
        assert torch.allclose(rows(model, job), rows(full_prefill(job), job))
    last = rows(model, jobs_of("offset", "r1")[-1])
    jobs = jobs_of("offset", "r2", first=20)
    verdicts = collect(jobs, model, model, judge).verdicts
    assert {v.chosen for v in verdicts.values()} == {0}
    start = int(
        jobs[2].moves[0, 1]
    )  # the member that stands as the last one of round 1 stood gets its very rows
    n = int(jobs[2].moves[:, 2].sum())
    size = last.shape[1] // 2
    got = rows(model, jobs[2])
    assert torch.allclose(got[:, start : start + n], last[:, start : start + n])
    assert torch.allclose(got[:, size + start : size + start + n], last[:, size + start : size + start + n])


def test_the_backend_that_the_docs_show_whole_does_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "backends.md").read_text("utf-8")
    code = text.rpartition("```python\n")[2].partition("```")[0]
    space: dict[str, Any] = {}
    exec(code, space)
    monkeypatch.setitem(registry._loaded, "offset", space["Offset"])
    model = opened()
    judge = Judge(model, model)
    before = jobs_of("offset", "r1")
    collect(before, model, model, judge)
    taught = [rows(model, job) for job in before]
    jobs = jobs_of("offset", "r2", orders=((0, 1, 2),), first=20)
    assert collect(jobs, model, model, judge).verdicts["m0"].chosen == 0
    size = taught[0].shape[1] // 2
    start = int(jobs[0].moves[0, 1])
    shared = sum(map(len, BLOCKS))
    means = [
        torch.stack(
            [
                t[:, plane * half + int(j.moves[0, 1]) :][:, :shared]
                for t, j, half in _with_halves(taught, before)
            ]
        ).mean(0)
        for plane in (0, 1)
    ]
    got = rows(model, jobs[0])
    for plane in (0, 1):
        assert torch.allclose(got[:, plane * size + start :][:, :shared], means[plane])


def _with_halves(
    taught: list[torch.Tensor], jobs: list[MemberJob]
) -> list[tuple[torch.Tensor, MemberJob, int]]:
    return [(t, j, t.shape[1] // 2) for t, j in zip(taught, jobs, strict=True)]


@pytest.mark.usefixtures("_offset")
def test_another_session_learns_for_itself() -> None:
    model = opened()
    judge = Judge(model, model)
    collect(jobs_of("offset", "r1"), model, model, judge)
    others = [replace(j, ask=replace(j.ask, scope=("", "t"))) for j in jobs_of("offset", "r2") if j.ask]
    assert all(v.chosen > 0 for v in collect(others, model, model, judge).verdicts.values())


def test_wrong_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._loaded, "offset", Offset)
    monkeypatch.setattr(Offset, "covers", lambda *_: True)
    monkeypatch.setattr(Offset, "correct", lambda self, piece, layer, key, value: (key[1:], value))
    model = opened()
    with pytest.raises(ValueError, match=r"'offset' corrected rows of shape \(11, 1, 1\) to \(10, 1, 1\)"):
        collect(jobs_of("offset"), model, model, Judge(model, model))
    with pytest.raises(ValueError, match="check layer 3 of backend 'cacheblend'; allowed: 0 to 2"):
        collect(jobs_of("cacheblend", layer=3), model, model, Judge(model, model))
    with pytest.raises(ValueError, match="nobody asks it"):
        collect(jobs_of("cacheblend"), model, model)
