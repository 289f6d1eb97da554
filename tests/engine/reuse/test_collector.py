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
from tokendance_engine.reuse.plan import make_plan
from tokendance_engine.reuse.ports import MemberJob, PageTable, Run
from tokendance_engine.reuse.selection import Reused

PAGE = 4


class ToyModel:
    """Two layers over pages: layer 0 of a token is its id, layer 1 sums layer 0 over its whole context.

    Implements both ports of the collector, writing before reading within a pass as real engines do.
    """

    def __init__(self, max_tokens: int, max_runs: int) -> None:
        self.max_tokens, self.max_runs = max_tokens, max_runs
        self.kv = np.full((64, PAGE, 2), np.nan)
        self.passes: list[tuple[int, int]] = []

    def forward(self, runs: Sequence[Run]) -> None:
        self.passes.append((len(runs), sum(len(r.tokens) for r in runs)))
        for run in runs:
            at = np.arange(run.start, run.end)
            self.kv[run.pages[at // PAGE], at % PAGE, 0] = run.tokens
        for run in runs:
            context = self.rows(run.pages, run.end)[:, 0]
            at = np.arange(run.start, run.end)
            self.kv[run.pages[at // PAGE], at % PAGE, 1] = np.cumsum(context)[run.start :]

    def restore(self, jobs: Sequence[MemberJob]) -> None:
        for job in jobs:
            for row, position, n in job.restore:
                source, target = np.arange(row, row + n), np.arange(position, position + n)
                got = self.kv[job.master_pages[source // PAGE], source % PAGE]
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
        Run(np.arange(a, b, dtype=np.int32), 1000 * i, tables[i])
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
    full = [sum(len(r.tokens) for r in b) == max_tokens or len(b) == max_runs for b in packed[:-1]]
    assert all(full), "a pass was left half empty"


def round_of_jobs(first: int) -> tuple[Run, list[MemberJob]]:
    """Three members over one master of 24 rows, each with another private history and order of two blocks."""
    master = Run(np.arange(1, 25, dtype=np.int32), 0, np.arange(6, dtype=np.int32))
    jobs = []
    for member, (history, order) in enumerate([(5, (0, 1)), (9, (1, 0)), (2, (0, 1))]):
        blocks = [(4, 14), (14, 24)]
        prompt, found = [100 * (member + 1) + i for i in range(history)], []
        for which in order:
            a, b = blocks[which]
            found.append(Reused(len(prompt), len(prompt) + b - a, a))
            prompt += master.tokens[a:b].tolist()
        prompt += [77, 78]
        plan = make_plan(len(prompt), 0, found, make_backend("master", first, {}), 2)
        tokens = np.array(prompt, dtype=np.int32)
        jobs.append(
            MemberJob(
                str(member),
                1,
                master.pages,
                np.arange(10 + 10 * member, 20 + 10 * member, dtype=np.int32),
                0,
                plan.restore,
                plan.compute,
                np.concatenate([tokens[a:b] for a, b in plan.compute]),
            )
        )
    return master, jobs


@given(st.integers(0, 12), st.integers(1, 30), st.integers(1, 9))
def test_a_round_at_once_gives_what_its_members_one_by_one_give(
    first: int, max_tokens: int, max_runs: int
) -> None:
    master, jobs = round_of_jobs(first)
    at_once, serial = ToyModel(max_tokens, max_runs), ToyModel(10_000, 10_000)
    compute([master], at_once)
    compute([master], serial)
    collect(jobs, at_once, at_once)
    for job in jobs:
        collect([job], serial, serial)
    assert np.array_equal(at_once.kv, serial.kv, equal_nan=True)


def test_one_pass_serves_all_members_when_it_fits() -> None:
    master, jobs = round_of_jobs(2)
    model = ToyModel(10_000, 10_000)
    compute([master], model)
    timing = collect(jobs, model, model)
    computed = sum(int((job.compute[:, 1] - job.compute[:, 0]).sum()) for job in jobs)
    assert model.passes == [(1, 24), (sum(len(job.compute) for job in jobs), computed)]
    assert timing.restore_ms >= 0
    assert timing.compute_ms > 0


def test_computed_positions_hold_what_a_full_prefill_gives_for_the_context_they_see() -> None:
    master, jobs = round_of_jobs(0)
    model = ToyModel(16, 3)
    compute([master], model)
    collect(jobs, model, model)
    for job in jobs:
        rows = model.rows(job.pages, int(job.compute[-1, 1]))
        assert not np.isnan(rows).any(), "a promised token got no KV"
        for start, end in job.compute:
            assert np.array_equal(rows[start:end, 1], np.cumsum(rows[:, 0])[start:end])


def test_nothing_to_compute_runs_no_pass() -> None:
    model = ToyModel(8, 8)
    compute([], model)
    assert model.passes == []
