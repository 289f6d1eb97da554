"""The Triton restore in vLLM's pages, in the interpreter: right where it runs, and counted where it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")
pytest.importorskip("triton")

import vllm._custom_ops as ops
from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV
from tokendance_engine.adapters.vllm.gpu_pages import TritonPagedKV, affine_plane
from tokendance_engine.adapters.vllm.pages import Layer, PackingError, PagedKV, write_rows
from tokendance_engine.kernels import launch
from tokendance_engine.kernels.rope import RopeTable
from tokendance_engine.reuse.ports import MemberJob
from vllm.platforms import current_platform

current_platform.import_kernels()
NEEDS_CPU_BUILD = pytest.mark.skipif(
    not hasattr(torch.ops._C, "cpu_attn_reshape_and_cache"), reason="needs vLLM's CPU build"
)
HEADS, SIZE, DIM, PAGES = 2, 32, 64, 9


class CpuWriter:
    """vLLM's cache writer, called as its CPU attention backend calls it."""

    def do_kv_cache_update(self, module: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        pages, heads, size, _ = cache.size()
        planes = cache.view(pages, heads, size * 2, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            key, value, *planes, slots, "vec", k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
        )


class CudaWriter:
    """What vLLM's CUDA writer does: each head's key beside its value, through strides."""

    def do_kv_cache_update(self, module: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        size = cache.shape[2]
        cache[slots // size, :, slots % size] = torch.cat([key, value], dim=2)


class Swizzler(CudaWriter):
    """Odd tokens backwards: a fixed packing, but not one of strides."""

    def do_kv_cache_update(self, module: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        odd = (slots % 2 == 1)[:, None, None]
        key, value = (torch.where(odd, rows.flip(2), rows) for rows in (key, value))
        super().do_kv_cache_update(module, key, value, cache, slots)


def rope_table(rot: int, neox: bool = True) -> RopeTable:
    angles = torch.arange(512).float()[:, None] * 1e4 ** (-torch.arange(0, rot, 2).float() / rot)
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1), neox)


ROPES = (rope_table(DIM), rope_table(DIM // 2, neox=False), None)


def layers_of(writer: Any, dtype: torch.dtype = torch.float32, cuda_strides: bool = False) -> list[Layer]:
    """Three layers, rotating all dimensions, half of them in the other pairing, none; all rows are random."""
    made = []
    for seed, rope in enumerate(ROPES):
        shape = (PAGES, SIZE, HEADS, 2 * DIM) if cuda_strides else (PAGES, HEADS, SIZE, 2 * DIM)
        cache = torch.zeros(shape, dtype=dtype)
        layer = Layer(SimpleNamespace(impl=writer), cache.transpose(1, 2) if cuda_strides else cache, rope)
        rows = torch.randn(2, PAGES * SIZE, HEADS, DIM, generator=torch.Generator().manual_seed(seed))
        write_rows(layer, *rows.to(dtype), torch.arange(PAGES * SIZE))
        made.append(layer)
    return made


def job(moves: list[tuple[int, int, int, int, int]], pages: list[int]) -> MemberJob:
    """Moves are (master row, prompt index, length, old position, new position); the master is pages 2, 0, 1."""
    tables = np.array([2, 0, 1], dtype=np.int32), np.array(pages, dtype=np.int32)
    return MemberJob("m", 1, *tables, np.array(moves, dtype=np.int64).reshape(-1, 5), [])


def jobs() -> list[MemberJob]:
    """Spans that start and end inside pages, go either way, and one that stays where it is."""
    return [
        job([(3, SIZE - 2, 41, 3, SIZE - 2)], [8, 4, 7]),
        job([(40, 5, 7, 40, 5), (60, 40, 12, 90, 90)], [6, 3]),
        job([], [5]),
    ]


def assert_same_pages(ours: PagedKV, theirs: PagedKV) -> None:
    """All rows of all layers: values bit for bit, keys up to one rounding."""
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        (k1, v1), (k2, v2) = (kv.read(x, torch.arange(PAGES)) for kv, x in ((ours, mine), (theirs, other)))
        assert torch.equal(v1, v2)
        eps = torch.finfo(k1.dtype).eps
        assert torch.allclose(k1.float(), k2.float(), rtol=eps, atol=1e-6)


@NEEDS_CPU_BUILD
def test_it_leaves_the_pages_that_the_cpu_path_leaves() -> None:
    ours = TritonPagedKV(layers_of(CpuWriter()), interpret=True)
    theirs = CpuPagedKV(layers_of(CpuWriter()))
    assert (ours.path, ours.reason) == ("triton-interpret", None)
    before = ours.layers[0].cache.clone()
    ours.restore(jobs())
    theirs.restore(jobs())
    assert not torch.equal(ours.layers[0].cache, before)
    assert_same_pages(ours, theirs)
    assert ours.restores == {"triton-interpret": 1, "torch": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_it_leaves_the_pages_that_the_dense_path_leaves_in_cudas_layout(dtype: torch.dtype) -> None:
    ours = TritonPagedKV(layers_of(CudaWriter(), dtype, cuda_strides=True), interpret=True)
    theirs = PagedKV(layers_of(CudaWriter(), dtype, cuda_strides=True))
    assert (ours.path, ours.reason) == ("triton-interpret", None)
    ours.restore(jobs())
    theirs.restore(jobs())
    assert_same_pages(ours, theirs)


def test_all_members_go_in_one_launch_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = TritonPagedKV(layers_of(CudaWriter()), interpret=True)
    launched: list[int] = []
    monkeypatch.setattr(launch, "restore", lambda s, t, rows, interpret: launched.append(len(rows)))
    kv.restore(jobs())
    kv.restore([job([], [5])])
    assert launched == [60, 60, 60]


def assert_dense(kv: TritonPagedKV, reason: str) -> None:
    """Restoring goes the dense way, is counted, and is right."""
    assert kv.path == "torch"
    assert kv.reason is not None
    assert reason in kv.reason
    theirs = PagedKV([Layer(x.module, x.cache.clone(), x.rope) for x in kv.layers])
    done = kv.restores["torch"]
    kv.restore(jobs())
    theirs.restore(jobs())
    assert_same_pages(kv, theirs)
    assert kv.restores["torch"] == done + 1


def test_pages_packed_beyond_strides_go_the_dense_way() -> None:
    kv = TritonPagedKV(layers_of(Swizzler()), interpret=True)
    assert_dense(kv, "do not lie at fixed strides")


def test_without_a_gpu_the_compiled_kernel_is_not_used() -> None:
    assert_dense(TritonPagedKV(layers_of(CudaWriter())), "allowed are CUDA and ROCm devices")


def test_a_kernel_that_leaves_other_pages_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = launch.restore

    def forgets_values(source: Any, target: Any, rows: Any, **how: Any) -> None:
        right(type(source)(source.key, None), type(target)(target.key, None), rows, **how)

    monkeypatch.setattr(launch, "restore", forgets_values)
    assert_dense(TritonPagedKV(layers_of(CudaWriter()), interpret=True), "leaves other pages")


def test_a_launch_that_fails_half_way_is_done_again_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = TritonPagedKV(layers_of(CudaWriter()), interpret=True)
    kv.restore([])
    right, launched = launch.restore, []

    def fails_at_the_second_layer(source: Any, target: Any, rows: Any, **how: Any) -> None:
        launched.append(rows)
        if len(launched) == 2:
            raise RuntimeError("out of resource: shared memory")
        right(source, target, rows, **how)

    monkeypatch.setattr(launch, "restore", fails_at_the_second_layer)
    theirs = PagedKV(layers_of(CudaWriter()))
    kv.restore(jobs())
    theirs.restore(jobs())
    assert_same_pages(kv, theirs)
    assert len(launched) == 2
    assert kv.restores == {"triton-interpret": 1, "torch": 1}
    assert_dense(kv, "out of resource: shared memory")
    assert len(launched) == 2


def test_learning_and_verifying_leave_the_engines_pages_alone() -> None:
    layers = layers_of(CudaWriter())
    before = [layer.cache.clone() for layer in layers]
    TritonPagedKV(layers, interpret=True)
    assert all(torch.equal(layer.cache, b) for layer, b in zip(layers, before, strict=True))


def test_an_affine_plane_is_a_view_of_the_pages() -> None:
    cache = torch.arange(3 * 2 * 4 * 6.0).view(3, 4, 2, 6).transpose(1, 2)
    value_at = torch.arange(4)[:, None] * 6 + 3 + torch.arange(3)
    plane = affine_plane(cache, value_at.flatten(), 4)
    assert torch.equal(plane, cache[..., 3:])
    plane[1, 1, 2, 0] = -1
    assert cache[1, 1, 2, 3] == -1


@pytest.mark.parametrize("change", [(3, 5), (0, 1)])
def test_a_plane_with_two_elements_exchanged_is_no_affine_plane(change: tuple[int, int]) -> None:
    cache, at = torch.zeros(1, 1, 4, 6), (torch.arange(4)[:, None] * 6 + torch.arange(3)).flatten()
    affine_plane(cache, at, 4)
    a, b = change
    at[[a, b]] = at[[b, a]]
    with pytest.raises(PackingError):
        affine_plane(cache, at, 4)
