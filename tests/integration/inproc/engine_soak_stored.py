"""The soak again with stored histories: what was lost in the small pool comes back in the middle of everything."""

from __future__ import annotations

import pytest
from engine_soak import SETTINGS as PLAIN
from engine_soak import (
    test_every_exact_answer_is_right_whatever_happens_around_it,
    test_pages_were_shared_in_all_this,
)
from rounds import Rounds

pytestmark = pytest.mark.server
SETTINGS = {**PLAIN, "tokendance": {"cpu_bytes": 1 << 26}}
__all__ = [
    "test_every_exact_answer_is_right_whatever_happens_around_it",
    "test_pages_were_shared_in_all_this",
]


def test_histories_came_back_in_all_this(rounds: Rounds) -> None:
    mirrors = rounds.worker.mirrors
    assert mirrors.restored_tokens > 0, "nothing came back: the soak shows nothing of it"
    assert not mirrors.faults
    mirrors.store.check()
