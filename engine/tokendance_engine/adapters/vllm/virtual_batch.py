"""Compute scattered positions of many requests in one call of the model's own forward pass.

Every contiguous run [s, e) is one sequence with query length e - s, sequence length e and its request's page table,
so vLLM's attention backend gives each run exactly its causal context and its cache write puts K/V in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_reduce
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from tokendance_engine.adapters.vllm.check_layer import Reached, reached
from tokendance_engine.reuse.ports import Run


class ModelBatch:
    """Virtual batches through a vLLM model runner.

    Args:
        runner: vLLM's model runner (`get_model()`, `model`, `attn_groups`).
        vllm_config: the engine's configuration.
        layer_names: attention layers of the one KV cache group.
        page_size: tokens per page.
        device: where the model runs.
    """

    def __init__(
        self,
        runner: Any,
        vllm_config: VllmConfig,
        layer_names: list[str],
        page_size: int,
        device: torch.device,
    ) -> None:
        self.max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.max_runs = vllm_config.scheduler_config.max_num_seqs
        self._runner = runner
        self._config = vllm_config
        self._names = layer_names
        self._page_size = page_size
        self._device = device
        # An own builder: the runner's may hold a buffer that its own, already built step still needs.
        group = runner.attn_groups[0][0]
        shared = group.get_metadata_builder()
        self._builder = type(shared)(shared.kv_cache_spec, layer_names, vllm_config, device)

    @torch.inference_mode()
    def keys(self, runs: Sequence[Run], layer: int) -> torch.Tensor:
        """Compute all runs in one pass up to a layer's keys, and no further: that layer writes nothing.

        Returns:
            [tokens, heads, dim], rotated.

        Raises:
            RuntimeError: the pass never came to that layer.
        """
        name = self._names[layer]
        with reached(self._config.compilation_config.static_forward_context[name].impl) as stop:
            with contextlib.suppress(Reached):
                self.forward(runs)
        if stop.key is None:
            raise RuntimeError(f"a pass of the model did not come to layer {name}")
        return stop.key[: sum(len(run.tokens) for run in runs)]

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores summed over the ranks of a tensor-parallel group, which must all choose alike."""
        if get_tensor_model_parallel_world_size() == 1:
            return scores
        summed: torch.Tensor = tensor_model_parallel_all_reduce(scores)
        return summed

    @torch.inference_mode()
    def forward(self, runs: Sequence[Run]) -> None:
        """Compute all runs in one pass.

        Raises:
            ValueError: more tokens or runs than the model's buffers hold.
        """
        lengths = np.array([len(r.tokens) for r in runs], dtype=np.int32)
        total = int(lengths.sum())
        if total > self.max_tokens or len(runs) > self.max_runs:
            raise ValueError(
                f"a pass of {total} tokens in {len(runs)} runs; allowed: {self.max_tokens} tokens, {self.max_runs} runs"
            )
        ends = np.array([r.end for r in runs], dtype=np.int32)
        positions = np.concatenate([np.arange(r.start, r.end, dtype=np.int64) + r.shift for r in runs])
        slots = np.concatenate([self._slots(r) for r in runs])
        width = -(-int(ends.max()) // self._page_size)
        table = np.zeros((len(runs), width), dtype=np.int32)
        for row, run in zip(table, runs, strict=True):
            n = min(width, len(run.pages))
            row[:n] = run.pages[:n]
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        cpu_starts = torch.from_numpy(starts)
        slot_mapping = self._to(slots)
        common = CommonAttentionMetadata(
            query_start_loc=cpu_starts.to(self._device),
            query_start_loc_cpu=cpu_starts,
            seq_lens=self._to(ends),
            num_reqs=len(runs),
            num_actual_tokens=total,
            max_query_len=int(lengths.max()),
            max_seq_len=int(ends.max()),
            block_table_tensor=self._to(table),
            slot_mapping=slot_mapping,
            causal=True,
            positions=self._to(positions),
            seq_lens_cpu_upper_bound=torch.from_numpy(ends),
        )
        metadata = self._builder.build(0, common)
        ids = np.concatenate([r.tokens for r in runs]).astype(np.int32)
        # Dtypes are the runner's own (int32 ids, int64 positions): a compiled model keeps no guards and would
        # compute garbage with others.
        with set_forward_context(
            dict.fromkeys(self._names, metadata),
            self._config,
            num_tokens=total,
            slot_mapping=dict.fromkeys(self._names, slot_mapping),
        ):
            self._runner.model(input_ids=self._to(ids), positions=self._to(positions))

    def _slots(self, run: Run) -> npt.NDArray[np.int64]:
        at = run.written()
        return run.pages[at // self._page_size].astype(np.int64) * self._page_size + at % self._page_size

    def _to(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
