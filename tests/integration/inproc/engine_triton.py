"""The Triton restore, interpreted, inside a real vLLM: it leaves the pages that the CPU path leaves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from rounds import Rounds

pytest.importorskip("triton")

from tokendance_engine.adapters.vllm.gpu_pages import TritonPagedKV
from tokendance_engine.adapters.vllm.pages import Layer
from tokendance_engine.reuse.ports import MemberJob

pytestmark = pytest.mark.server
os.environ["TOKENDANCE_KERNEL"] = "triton-interpret"  # this process is this module's own


def test_a_round_is_restored_by_the_triton_kernel_into_the_pages_the_cpu_path_leaves(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Numba must not be imported before the engine has started.
    from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV

    kv: Any = rounds.worker._need_engine()[0]
    assert isinstance(kv, TritonPagedKV)
    assert (kv.path, kv.reason) == ("triton-interpret", None)
    assert "restore by triton-interpret" in rounds.worker.status()["gate"]
    compared: list[int] = []
    right = kv.restore

    def both(jobs: Sequence[MemberJob]) -> None:
        theirs = CpuPagedKV([Layer(x.module, x.cache.clone(), x.rope) for x in kv.layers])
        before = [x.cache.clone() for x in kv.layers]
        theirs.restore(jobs)
        right(jobs)
        for mine, other, old in zip(kv.layers, theirs.layers, before, strict=True):
            changed = (mine.cache != old).flatten(1).any(1)
            assert torch.equal(changed, (other.cache != old).flatten(1).any(1))
            pages = changed.nonzero().squeeze(1)
            (k1, v1), (k2, v2) = kv.read(mine, pages), theirs.read(other, pages)
            assert torch.equal(v1, v2)
            assert torch.allclose(k1, k2, rtol=1e-6, atol=1e-6)
            compared.append(len(pages))

    monkeypatch.setattr(kv, "restore", both)
    got = rounds.play(rounds.members(), fidelity="fast", placement="copy")
    assert all(report["reused_tokens"] > 100 for report in got.reports)
    assert len(compared) >= len(kv.layers)
    assert min(compared) > 3
    assert kv.restores == {"triton-interpret": len(compared) // len(kv.layers), "torch": 0}


def test_its_answers_are_those_of_the_dense_path(rounds: Rounds) -> None:
    kv: Any = rounds.worker._need_engine()[0]
    prompts = rounds.members()
    triton = rounds.play(prompts, fidelity="fast", placement="copy")
    done = kv.restores["triton-interpret"]
    assert done > 0
    rounds.forget()
    rounds.scribble()
    kv.path, path = "torch", kv.path
    try:
        dense = rounds.play(prompts, fidelity="fast", placement="copy")
    finally:
        kv.path = path
    assert kv.restores["triton-interpret"] == done
    assert kv.restores["torch"] > 0
    assert triton.tokens == dense.tokens
