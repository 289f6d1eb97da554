"""Merging what several workers report about one step."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.reuse.ports import MasterJob, Run

NOTHING = np.zeros(0, dtype=np.int32)


def test_a_step_with_any_job_is_not_empty() -> None:
    assert StepMeta().is_empty()
    assert StepMeta(families=[]).is_empty(), "a status snapshot is no work"
    assert not StepMeta(masters=[MasterJob(1, Run(NOTHING, 0, NOTHING))]).is_empty()


@pytest.mark.parametrize(
    "report",
    [
        WorkerReport(gate=(None,)),
        WorkerReport(times={"a": (0.0, 0.0)}),
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


def test_any_workers_fault_counts_once_and_the_longest_time_counts() -> None:
    one = WorkerReport(None, {"a": (1.0, 9.0), "b": (2.0, 2.0)}, ["b", "a"], [3])
    two = WorkerReport(None, {"a": (5.0, 4.0)}, ["a", "c"], [1, 3])
    merged = one.aggregate(two)
    assert merged.times == {"a": (5.0, 9.0), "b": (2.0, 2.0)}
    assert merged.failed == ["a", "b", "c"]
    assert merged.broken_masters == [1, 3]
    assert two.aggregate(one) == merged
