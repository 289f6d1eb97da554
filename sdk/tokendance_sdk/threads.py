"""Blocking jobs in parallel, on threads that cannot keep a program from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start(jobs: Sequence[Callable[[], T]], limit: int) -> list[Future[T]]:
    """Run jobs in order, at most `limit` at once; cancelled futures that have not started never do.

    Python joins the threads of its own executors when it exits, so an abandoned request (past its deadline, say) would
    hold the program until the HTTP timeout. These are daemon threads.
    """
    futures: list[Future[T]] = [Future() for _ in jobs]
    waiting: queue.SimpleQueue[tuple[Future[T], Callable[[], T]]] = queue.SimpleQueue()
    for pair in zip(futures, jobs, strict=True):
        waiting.put(pair)

    def work() -> None:
        while True:
            try:
                future, job = waiting.get_nowait()
            except queue.Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    for i in range(min(limit, len(jobs))):
        threading.Thread(target=work, name=f"tokendance-{i}", daemon=True).start()
    return futures
