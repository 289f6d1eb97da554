"""Jobs on daemon threads: in order, bounded, cancellable, and never in the way of the program's end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from tokendance_sdk.threads import start


def test_results_and_errors_come_back() -> None:
    def fail() -> int:
        raise ValueError("no")

    good, bad = start([lambda: 7, fail], 2)
    assert good.result(5) == 7
    with pytest.raises(ValueError, match="no"):
        bad.result(5)


def test_at_most_limit_jobs_run_at_once_and_cancelled_ones_never_start() -> None:
    running, ran = threading.Semaphore(0), []
    release = threading.Event()

    def job(i: int) -> None:
        ran.append(i)
        running.release()
        release.wait(10)

    futures = start([lambda i=i: job(i) for i in range(5)], 2)
    assert running.acquire(timeout=5)
    assert running.acquire(timeout=5)
    assert [f.cancel() for f in futures] == [False, False, True, True, True]
    release.set()
    for future in futures[:2]:
        future.result(5)
    assert sorted(ran) == [0, 1]


def test_an_abandoned_job_does_not_hold_the_program() -> None:
    code = "import time; from tokendance_sdk.threads import start; start([lambda: time.sleep(600)], 1)"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)
