"""Packing runs into passes, and doing a whole round at once with the result of doing it member by member."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.reuse.backends import make_backend
from tokendance_engine.reuse.collector import collect, compute, passes
from tokendance_engine.reuse.plan import Context, make_plan
from tokendance_engine.reuse.ports import MasterJob, MemberJob, PageTable, Run
from tokendance_engine.reuse.selection import Reused
from tokendance_engine.segments.frame import Frame

PAGE = 4


class ToyModel:
    """Pages of (token id, sum of ids over the whole context, position the key is rotated for).

    Implements both ports of the collector, writing before reading within a pass as real engines do.
    """

    def __init__(self, max_tokens: int, max_runs: int) -> None:
        self.max_tokens, self.max_runs = max_tokens, max_runs
        self.kv = np.full((64, PAGE, 3), np.nan)
        self.passes: list[tuple[int, int]] = []

    def forward(self, runs: Sequence[Run]) -> None:
        self.passes.append((len(runs), sum(len(r.tokens) for r in runs)))
        for run in runs:
            at, to = np.arange(run.start, run.end), run.written()
            self.kv[run.pages[to // PAGE], to % PAGE, 0] = run.tokens
            self.kv[run.pages[to // PAGE], to % PAGE, 2] = at + run.shift
        for run in runs:
            context, to = self.rows(run.pages, run.end)[:, 0], run.written()
            self.kv[run.pages[to // PAGE], to % PAGE, 1] = np.cumsum(context)[run.start :]

    def restore(self, jobs: Sequence[MemberJob]) -> None:
        for job in jobs:
            for row, index, n, old, new in job.moves:
                source, target = np.arange(row, row + n), np.arange(index, index + n)
                got = self.kv[job.master_pages[source // PAGE], source % PAGE].copy()
                got[:, 2] += new - old
                self.kv[job.pages[target // PAGE], target % PAGE] = got

    def rows(self, pages: PageTable, n: int) -> npt.NDArray[np.float64]:
        at = np.arange(n)
        found: npt.NDArray[np.float64] = self.kv[pages[at // PAGE], at % PAGE]
        return found


run_lists = st.lists(st.integers(1, 30), max_size=12)


@given(run_lists, st.integers(1, 40), st.integers(1, 5))
def test_passes_keep_both_limits_and_the_order_and_tile_the_input(
    lengths: list[int], max_tokens: int, max_runs: int
) -> None:
    edges = [0, *itertools.accumulate(lengths)]
    tables = [np.array([i], dtype=np.int32) for i in range(len(lengths))]
    runs = [
        Run(np.arange(a, b, dtype=np.int32), 1000 * i, tables[i], 7 * i)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    packed = list(passes(runs, max_tokens, max_runs))
    assert all(0 < len(batch) <= max_runs for batch in packed)
    assert all(sum(len(r.tokens) for r in batch) <= max_tokens for batch in packed)
    flat = [run for batch in packed for run in batch]
    assert [t for r in flat for t in r.tokens.tolist()] == list(range(edges[-1]))
    for run in flat:
        whole = runs[int(run.pages[0])]
        assert run.pages is whole.pages
        assert run.start - whole.start == run.tokens[0] - whole.tokens[0], "a cut run kept a wrong position"
        assert run.shift == whole.shift
    full = [sum(len(r.tokens) for r in b) == max_tokens or len(b) == max_runs for b in packed[:-1]]
    assert all(full), "a pass was left half empty"


MASTER = Frame(((8, 3), (16, 7)))
"""Block 0 is rows [8, 16), block 1 rows [16, 24); positions are skipped before both."""


def round_of_jobs(first: int) -> tuple[list[Run], list[MemberJob], list[Frame]]:
    """Three members over one master of 24 rows: another private history, order of two blocks and shift each.

    The third stands where the master stands, so it shares pages of the master.
    """
    pages = np.arange(6, dtype=np.int32)
    ids = np.arange(1, 25, dtype=np.int32)
    master = [Run(ids[a:b], a, pages, shift) for a, b, shift in MASTER.pieces(0, 24)]
    members = [
        (5, (0, 1), Frame()),
        (9, (1, 0), Frame(((9, 2),))),
        (4, (0, 1), Frame(((4, 7), (12, 11)))),
    ]
    jobs = []
    for member, (history, order, frame) in enumerate(members):
        blocks = [(8, 16), (16, 24)]
        prompt, found = [100 * (member + 1) + i for i in range(history)], []
        for which in order:
            a, b = blocks[which]
            found.append(Reused(len(prompt), len(prompt) + b - a, a))
            prompt += ids[a:b].tolist()
        prompt += [77, 78]
        tokens = np.array(prompt, dtype=np.int32)
        plan = make_plan(
            Context(len(prompt), 0, PAGE, frame, MASTER), found, make_backend("master", first, {}), 0
        )
        table = np.arange(10 + 10 * member, 10 + 10 * member + plan.end // PAGE, dtype=np.int32)
        table[plan.shared[:, 0]] = pages[plan.shared[:, 1]]
        moves = np.column_stack([plan.restore, MASTER.at(plan.restore[:, 0]), frame.at(plan.restore[:, 1])])
        pieces = [piece for a, b in plan.compute.tolist() for piece in frame.pieces(a, b)]
        runs = [Run(tokens[a:b], a, table, shift) for a, b, shift in pieces]
        jobs.append(MemberJob(str(member), 1, pages, table, moves, runs))
    return master, jobs, [frame for _, _, frame in members]


@given(st.integers(0, 12), st.integers(1, 30), st.integers(1, 9))
def test_a_round_at_once_gives_what_its_members_one_by_one_give(
    first: int, max_tokens: int, max_runs: int
) -> None:
    master, jobs, _ = round_of_jobs(first)
    at_once, serial = ToyModel(max_tokens, max_runs), ToyModel(10_000, 10_000)
    compute(master, at_once)
    compute(master, serial)
    collect(jobs, at_once, at_once)
    for job in jobs:
        collect([job], serial, serial)
    assert np.array_equal(at_once.kv, serial.kv, equal_nan=True)


def test_one_pass_serves_all_members_when_it_fits() -> None:
    master, jobs, _ = round_of_jobs(2)
    model = ToyModel(10_000, 10_000)
    compute(master, model)
    timing = collect(jobs, model, model)
    runs = [run for job in jobs for run in job.runs]
    assert model.passes == [(3, 24), (len(runs), sum(len(run.tokens) for run in runs))]
    assert timing.restore_ms >= 0
    assert timing.compute_ms > 0


@given(st.integers(0, 12))
def test_every_planned_token_stands_at_its_position_and_computed_ones_saw_their_whole_context(
    first: int,
) -> None:
    master, jobs, frames = round_of_jobs(first)
    model = ToyModel(16, 3)
    compute(master, model)
    before = model.kv[:6].copy()
    collect(jobs, model, model)
    for job, frame in zip(jobs, frames, strict=True):
        rows = model.rows(job.pages, len(job.pages) * PAGE)
        assert not np.isnan(rows).any(), "a planned token got no KV"
        assert rows[:, 2].tolist() == frame.at(np.arange(len(rows))).tolist()
        for run in job.runs:
            assert (
                rows[run.start : run.end, 1].tolist() == np.cumsum(rows[:, 0])[run.start : run.end].tolist()
            )
    assert np.array_equal(model.kv[:6], before), "somebody wrote into the master"


def test_a_member_where_the_master_stands_points_to_its_pages() -> None:
    _, jobs, _ = round_of_jobs(0)
    assert [set(job.pages.tolist()) & set(range(6)) for job in jobs] == [set(), set(), {2, 3, 4, 5}]
    assert len(jobs[2].moves) == 0


def test_a_master_job_counts_its_rows() -> None:
    master, _, _ = round_of_jobs(0)
    assert MasterJob(1, master).tokens == 24


def test_nothing_to_compute_runs_no_pass() -> None:
    model = ToyModel(8, 8)
    compute([], model)
    assert model.passes == []
