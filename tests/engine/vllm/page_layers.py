"""Layers whose pages some writer fills, and restores for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm._custom_ops as ops
from tokendance_engine.adapters.vllm.pages import Layer, write_rows
from tokendance_engine.kernels.rope import RopeTable
from tokendance_engine.reuse.ports import MemberJob
from vllm.platforms import current_platform

current_platform.import_kernels()
if not hasattr(torch.ops._C, "cpu_attn_reshape_and_cache"):
    pytest.skip("needs vLLM's CPU build", allow_module_level=True)

torch.set_num_threads(1)  # small tensors: more threads cost more than they bring
HEADS = 3
KINDS = [
    ("vec", torch.float32, 32, 64),
    ("vec", torch.float32, 128, 128),
    ("vec", torch.bfloat16, 32, 64),
    ("vec", torch.bfloat16, 128, 64),
    ("vec", torch.bfloat16, 32, 128),
    ("vec16", torch.float32, 16, 80),
]
Writer = Any


class CpuWriter:
    """vLLM's cache writer, called as its CPU attention backend calls it."""

    def __init__(self, isa: str) -> None:
        self.isa = isa

    def do_kv_cache_update(
        self, module: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        pages, heads, size, _ = cache.size()
        planes = cache.view(pages, heads, size * 2, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            key, value, *planes, slots, self.isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
        )


class RowWriter:
    """A writer in torch: each head's key beside its value, through whatever a subclass does to them."""

    def do_kv_cache_update(
        self, module: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        size = cache.shape[2]
        cache[slots // size, :, slots % size] = self.packed(torch.cat([key, value], dim=2))

    def packed(self, both: torch.Tensor) -> torch.Tensor:
        return both


class HeadSwapper(RowWriter):
    def packed(self, both: torch.Tensor) -> torch.Tensor:
        return both.roll(1, dims=1)


class HeadwiseOrder(RowWriter):
    def packed(self, both: torch.Tensor) -> torch.Tensor:
        mixed = both.clone()
        mixed[:, 1] = both[:, 1].flip(-1)
        return mixed


class Dropper(RowWriter):
    def packed(self, both: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(both.shape[2]) == 5, -1, both)


def rope_table(dim: int, neox: bool = True) -> RopeTable:
    angles = torch.arange(2048).float()[:, None] * 1e4 ** (-torch.arange(0, dim, 2).float() / dim)
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1), neox)


def layer_of(
    writer: Writer,
    dtype: torch.dtype,
    size: int,
    dim: int,
    rope: RopeTable | None,
    pages: int = 16,
    seed: int = 0,
) -> Layer:
    """A layer whose pages all hold random rows, written by its writer."""
    layer = Layer(SimpleNamespace(impl=writer), torch.zeros(pages, HEADS, size, 2 * dim, dtype=dtype), rope)
    write_rows(layer, *random_rows(layer, seed), torch.arange(pages * size))
    return layer


def random_rows(layer: Layer, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    pages, heads, size, width = layer.cache.shape
    both = torch.randn(2, pages * size, heads, width // 2, generator=torch.Generator().manual_seed(seed))
    return both[0].to(layer.cache.dtype), both[1].to(layer.cache.dtype)


def job(restore: list[list[int]], pages: list[int], master_pages: list[int]) -> MemberJob:
    """Restores (row, index, length), or with the positions of both; without, they stand at row and index."""
    tables = (np.array(master_pages, dtype=np.int32), np.array(pages, dtype=np.int32))
    moves = [[*span, *span[:2]] if len(span) == 3 else span for span in restore]
    return MemberJob("m", 1, *tables, np.array(moves, dtype=np.int64).reshape(-1, 5), [])
