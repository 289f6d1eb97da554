"""Merging what several workers say about stored histories."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")

from tokendance_engine.adapters.vllm.mirror_jobs import (
    FindJob,
    Held,
    MasterRestore,
    MirrorReport,
    MirrorWork,
    Owner,
    RestoreJob,
)
from tokendance_engine.storage.positions import Positions

OWNER = Owner("", "s", "a")
PAGES = np.zeros(0, dtype=np.int32)


def held(n: int) -> Held:
    return Held(np.zeros(n, dtype=np.int32), Positions.plain(), None)


def test_a_member_comes_back_as_far_as_every_worker_holds_it() -> None:
    short, long = held(3), held(5)
    assert Held.by_all([long, short, long]) is short
    assert Held.by_all([long, None]) is None
    one, two = MirrorReport(held={"a": (long,)}), MirrorReport(held={"a": (None,), "b": (short,)})
    assert one.aggregate(two).held == {"a": (long, None), "b": (short,)}, "each worker's answer, once it came"


def test_done_is_what_all_workers_did_and_any_fault_counts() -> None:
    one = MirrorReport(
        restored={"a": 1.0, "b": 2.0}, lost=["c"], captured=["x"], broken=[3], released=[("", "s")]
    )
    two = MirrorReport(restored={"a": 5.0}, captured=["x"])
    merged = one.aggregate(two)
    assert merged == two.aggregate(one)
    assert (merged.restored, merged.lost) == ({"a": 5.0}, ["b", "c"])
    assert (merged.captured, merged.broken, merged.released) == (["x"], [3], [("", "s")])


def test_a_worker_without_a_store_answers_everything() -> None:
    work = MirrorWork(
        restores=[RestoreJob("r", OWNER, PAGES, 0, 32)],
        finds=[FindJob("f", OWNER)],
        revived=[MasterRestore(OWNER, 7, PAGES, 32)],
    )
    refused = MirrorReport.refusing(work)
    assert (refused.held, refused.lost, refused.broken) == ({"f": (None,)}, ["r"], [7])
    assert not work.is_empty()
    assert MirrorWork().is_empty()
    assert not MirrorWork(reset=True).is_empty()
