"""Synthetic rounds against an engine in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tokendance_bench.inproc import Engine, Outcome, Prompt


class Rounds(Engine):
    """An engine, and prompts of random tokens for it."""

    def __init__(self, model: str, **settings: Any) -> None:
        super().__init__(model, kv_gib=1, **{"max_model_len": 2048, "max_num_seqs": 16, **settings})
        self.rng = np.random.default_rng(0)

    @property
    def pool(self) -> Any:
        """vLLM's page pool."""
        return self.scheduler.pool.vllm

    @property
    def worker(self) -> Any:
        """The worker half of the connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    def random(self, n: int) -> list[int]:
        """n random token ids."""
        return [int(t) for t in self.rng.integers(100, 40_000, n)]

    def members(
        self,
        histories: Sequence[int] = (70, 101, 133),
        blocks: Sequence[int] = (90, 90, 90),
        task: int = 20,
        orders: Sequence[Sequence[int]] | None = None,
    ) -> list[Prompt]:
        """Prompts of agents with private histories of the given lengths and the same random blocks."""
        shared = [self.random(n) for n in blocks]
        end = self.random(task)
        orders = orders or [range(len(shared))] * len(histories)
        return [
            join(f"a{i}", self.random(n), [shared[j] for j in order], end)
            for i, (n, order) in enumerate(zip(histories, orders, strict=True))
        ]

    def plain(self, prompts: Sequence[Prompt], max_tokens: int = 12) -> list[list[int]]:
        """What vLLM answers without a tag, from empty caches."""
        self.forget()
        answers = self.round(prompts, max_tokens=max_tokens).tokens
        self.forget()
        self.scribble()
        return answers

    def lose(self) -> None:
        """As if other requests had taken every page: no prefix, no master; what is stored stays."""
        self.drain()
        self.scheduler._families.give_way(1 << 30)
        assert self.llm.reset_prefix_cache()
        self.scribble()

    def scribble(self) -> None:
        """Fill the pages in use most with garbage, or one read too early might still hold the right rows."""
        for cache in self.worker._caches.values():
            cache[:600].fill_(3.0)

    def play(
        self, prompts: Sequence[Prompt], round_id: str = "s:1", max_tokens: int = 12, **tag: Any
    ) -> Outcome:
        """The prompts as one round."""
        return self.round(prompts, {"round_id": round_id, **tag}, max_tokens=max_tokens)

    def rows(self, request_pages: Sequence[int], tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """K and V of the first tokens of a page table, layer by layer."""
        kv, _ = self.worker._need_engine()
        pages = torch.tensor(list(request_pages))
        return [tuple(plane[:tokens] for plane in kv.read(layer, pages)) for layer in kv.layers]

    @contextlib.contextmanager
    def broken(self, method: str, error: Exception) -> Iterator[list[int]]:
        """Let a method of the worker half raise; yields a list with one entry per call."""
        calls: list[int] = []

        def fail(*args: Any) -> Any:
            calls.append(1)
            raise error

        setattr(self.worker, method, fail)
        try:
            yield calls
        finally:
            delattr(self.worker, method)
            self.worker._broken_masters.clear()


def join(agent: str, history: list[int], blocks: Sequence[list[int]], end: list[int]) -> Prompt:
    """History, blocks, end, with boundaries around every block."""
    tokens, boundaries = list(history), []
    for block in blocks:
        boundaries.append(len(tokens))
        tokens += block
    boundaries.append(len(tokens))
    return Prompt(agent, tokens + end, boundaries)
