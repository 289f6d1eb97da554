"""Two ranks of a tiny model: the same tokens as one rank, and the same as full prefill.

`TOKENDANCE_RANKS` says how many ranks; `TOKENDANCE_ANSWERS` is a file that the first of two runs writes and the second
compares with.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rounds import Rounds

pytestmark = pytest.mark.server
RANKS = int(os.environ.get("TOKENDANCE_RANKS", "2"))
ANSWERS = os.environ.get("TOKENDANCE_ANSWERS", "")
if RANKS > 1:
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else every rank wants cores of its own
SETTINGS = {"tensor_parallel_size": RANKS}


def _spoil(worker: Any) -> tuple[bool, str | None, int]:
    """In a worker: garbage into the pages in use most; whether it reuses, why not, its rank."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    ours = get_kv_transfer_group().worker
    for cache in ours._caches.values():
        cache[:600].fill_(3.0)
    status = ours.status()
    return status["reuse"], status["reason"], int(worker.rank)


def test_rounds_on_several_ranks_answer_as_one_rank_and_as_full_prefill(rounds: Rounds) -> None:
    prompts = rounds.members()
    rounds.forget()
    truth = rounds.round(prompts, max_tokens=12).tokens
    got = {}
    for name, tag in (("all", {"backend": "all"}), ("fast", {"fidelity": "fast"}), ("balanced", {})):
        for placement in ("copy", "shared"):
            rounds.forget()
            told = rounds.llm.collective_rpc(_spoil)
            assert [(reuse, rank) for reuse, _, rank in told] == [(True, r) for r in range(RANKS)], told
            outcome = rounds.play(prompts, placement=placement, **tag)
            got[f"{name} {placement}"] = outcome.tokens
            used = "recomputed_tokens" if name == "all" else "reused_tokens"
            assert all(r[used] > 0 for r in outcome.reports if r is not None), outcome.reports
            assert all(r["compute_ms"] is not None for r in outcome.reports if r is not None)
    assert got["all copy"] == got["all shared"] == truth
    assert got["fast copy"] != truth, "nothing was approximate: the test shows nothing"
    if not ANSWERS:
        return
    kept = Path(ANSWERS)
    if kept.exists():
        assert json.loads(kept.read_text()) == got
    else:
        kept.write_text(json.dumps(got))
