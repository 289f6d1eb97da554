"""Merging what several workers report about one step."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.messages import Shifts, StepMeta, WorkerReport
from tokendance_engine.reuse.ports import MasterJob, MemberJob, Run

NOTHING = np.zeros(0, dtype=np.int32)


def test_a_step_with_any_job_is_not_empty() -> None:
    assert StepMeta().is_empty()
    assert StepMeta(families=[]).is_empty(), "a status snapshot is no work"
    assert StepMeta(shifts=Shifts({"a": 1}, {"a": [(1, 32)]})).is_empty(), (
        "vLLM's own pass is no work of ours"
    )
    assert not StepMeta(masters=[MasterJob(1, [Run(NOTHING, 0, NOTHING)])]).is_empty()
    moves = np.zeros((0, 5), dtype=np.int64)
    assert not StepMeta(members=[MemberJob("a", 1, NOTHING, NOTHING, moves, [])]).is_empty()


@pytest.mark.parametrize(
    "report",
    [
        WorkerReport(gate=(None,)),
        WorkerReport(done={"a": (0.0, 0.0)}),
        WorkerReport(failed=["a"]),
        WorkerReport(broken_masters=[1]),
    ],
)
def test_a_report_that_says_anything_is_sent(report: WorkerReport) -> None:
    assert WorkerReport().is_empty()
    assert not report.is_empty()
    assert not WorkerReport().aggregate(report).is_empty()
    assert not report.aggregate(WorkerReport()).is_empty()


@pytest.mark.parametrize(
    ("one", "two", "merged"),
    [
        ((None,), ("no rope",), ("no rope",)),
        (("no rope",), (None,), ("no rope",)),
        ((None,), (None,), (None,)),
        (None, (None,), (None,)),
        (None, None, None),
    ],
)
def test_reuse_is_on_only_where_no_worker_objects(
    one: tuple[str | None] | None, two: tuple[str | None] | None, merged: tuple[str | None] | None
) -> None:
    assert WorkerReport(gate=one).aggregate(WorkerReport(gate=two)).gate == merged


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("two", [True, False])
def test_positions_are_shifted_only_where_every_worker_can(one: bool, two: bool) -> None:
    merged = WorkerReport((None,), shifts=one).aggregate(WorkerReport((None,), shifts=two))
    assert merged.shifts == (one and two)


def test_done_is_what_all_workers_did_and_of_each_time_the_longest() -> None:
    one = WorkerReport(done={"a": (1.0, 9.0), "b": (2.0, 2.0)})
    two = WorkerReport(done={"a": (5.0, 4.0), "b": (1.0, 3.0)})
    merged = one.aggregate(two)
    assert merged.done == {"a": (5.0, 9.0), "b": (2.0, 3.0)}
    assert merged.failed == []
    assert two.aggregate(one) == merged


def test_any_workers_fault_counts_once_and_what_only_one_did_failed() -> None:
    one = WorkerReport(done={"a": (1.0, 9.0), "b": (2.0, 2.0)}, failed=["d", "c"], broken_masters=[3])
    two = WorkerReport(done={"a": (5.0, 4.0)}, failed=["c"], broken_masters=[1, 3])
    merged = one.aggregate(two)
    assert set(merged.done) == {"a"}
    assert merged.failed == ["b", "c", "d"]
    assert merged.broken_masters == [1, 3]
    assert two.aggregate(one) == merged


def test_three_workers_are_merged_two_by_two() -> None:
    did, lost = WorkerReport(done={"a": (1.0, 1.0)}), WorkerReport(failed=["a"])
    for order in ([did, did, lost], [did, lost, did], [lost, did, did]):
        merged = order[0].aggregate(order[1]).aggregate(order[2])
        assert (merged.done, merged.failed) == ({}, ["a"])
