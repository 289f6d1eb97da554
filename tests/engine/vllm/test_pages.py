"""Reading and restoring K/V in pages that vLLM's own CPU cache writer packs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from page_layers import (
    KINDS,
    CpuWriter,
    Dropper,
    HeadSwapper,
    HeadwiseOrder,
    RowWriter,
    Writer,
    job,
    layer_of,
    random_rows,
    rope_table,
)
from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV
from tokendance_engine.adapters.vllm.pages import PackingError, PagedKV, Restore, learn_packing
from tokendance_engine.kernels import cpu
from tokendance_engine.kernels.cpu_moves import Runs, Turns


@pytest.mark.parametrize(("isa", "dtype", "size", "dim"), KINDS)
def test_the_packing_of_vllms_writer_is_learned_and_rows_read_back_bit_for_bit(
    isa: str, dtype: torch.dtype, size: int, dim: int
) -> None:
    layer = layer_of(CpuWriter(isa), dtype, size, dim, None)
    packing = learn_packing(layer)
    assert torch.equal(torch.cat([packing.key, packing.value]).sort().values, torch.arange(2 * size * dim))
    key, value = PagedKV([layer]).read(layer, torch.tensor([7, 2]))
    wanted_key, wanted_value = random_rows(layer, 0)
    at = torch.cat([torch.arange(7 * size, 8 * size), torch.arange(2 * size, 3 * size)])
    assert torch.equal(key, wanted_key[at])
    assert torch.equal(value, wanted_value[at])


def test_learning_leaves_the_engines_pages_alone() -> None:
    layer = layer_of(CpuWriter("vec"), torch.float32, 32, 64, None)
    before = layer.cache.clone()
    PagedKV([layer])
    CpuPagedKV([layer])
    assert torch.equal(layer.cache, before)


@pytest.mark.parametrize(
    "writer", [HeadSwapper(), HeadwiseOrder(), Dropper()], ids=lambda w: type(w).__name__
)
def test_a_writer_that_scrambles_heads_or_loses_elements_is_refused(writer: Writer) -> None:
    learn_packing(layer_of(RowWriter(), torch.float32, 16, 32, None))
    with pytest.raises(PackingError):
        learn_packing(layer_of(writer, torch.float32, 16, 32, None))


@pytest.mark.parametrize(("isa", "dtype", "size", "dim"), KINDS)
def test_the_fused_restore_leaves_the_pages_that_the_backends_writer_leaves(
    isa: str, dtype: torch.dtype, size: int, dim: int
) -> None:
    """Layers rotate all dimensions, half of them in GPT-J pairing, or none; spans start and end inside pages."""
    rope, other = rope_table(dim), rope_table(dim // 2, neox=False)
    made = [
        [
            layer_of(CpuWriter(isa), dtype, size, dim, r, pages=10, seed=i)
            for i, r in enumerate((rope, other, None))
        ]
        for _ in range(2)
    ]
    n = size + 5
    jobs = [
        job([[3, size - 2, n]], [9, 4, 7], [2, 0, 1]),
        job([[3, 1, 4], [size + 1, 2 * size - 3, 6], [0, 7, 2]], [6, 8, 5], [2, 0, 1]),
        job([], [3], [2, 0, 1]),
    ]
    slow, fast = PagedKV(made[0]), CpuPagedKV(made[1])
    before = made[0][0].cache.clone()
    slow.restore(jobs)
    fast.restore(jobs)
    assert not torch.equal(made[0][0].cache, before)
    eps = torch.finfo(dtype).eps
    for theirs, ours in zip(*made, strict=True):
        (k1, v1), (k2, v2) = (kv.read(x, torch.arange(10)) for kv, x in ((slow, theirs), (fast, ours)))
        assert torch.equal(v1, v2)
        if theirs.rope is None:
            assert torch.equal(k1, k2)
        assert torch.allclose(k1.float(), k2.float(), rtol=eps, atol=1e-6)


@pytest.mark.parametrize("way", ["pages to pages", "rows to pages", "pages to rows"])
def test_a_raw_path_that_loses_a_row_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    right = cpu.restore

    def wrong(source: cpu.Planes, target: cpu.Planes, runs: Runs, turns: Turns | None = None) -> None:
        if way == " to ".join("rows" if plane.key.pages == 1 else "pages" for plane in (source, target)):
            runs = Runs(runs.table - np.array([0, 0, 0, 0, 1, 0]), runs.rows)
            turns = replace(turns, runs=runs) if turns is not None else None
        right(source, target, runs, turns)

    layer = layer_of(CpuWriter("vec"), torch.float32, 32, 64, rope_table(64))
    CpuPagedKV([layer])
    monkeypatch.setattr(cpu, "restore", wrong)
    with pytest.raises(PackingError, match="raw reads" if way == "pages to rows" else "raw stores"):
        CpuPagedKV([layer])


@pytest.mark.parametrize("kind", [PagedKV, CpuPagedKV])
def test_restored_rows_are_the_masters_rows_rotated_and_nothing_else_changes(kind: type[PagedKV]) -> None:
    size, dim = 32, 64
    rope = rope_table(dim)
    layer = layer_of(CpuWriter("vec"), torch.float32, size, dim, rope)
    kv = kind([layer])
    key, value = kv.read(layer, torch.arange(16))
    kv.restore([job([[10, 50, 40]], [8, 3, 5], [2, 0])])
    got_key, got_value = kv.read(layer, torch.arange(16))
    rows, at = np.arange(10, 50), np.arange(50, 90)
    source = torch.from_numpy(np.array([2, 0])[rows // size] * size + rows % size)
    target = torch.from_numpy(np.array([8, 3, 5])[at // size] * size + at % size)
    assert torch.equal(got_value[target], value[source])
    angle = 40.0 * 1e4 ** (-torch.arange(0, dim, 2).float() / dim)  # every row moves by 40 positions
    turned = torch.view_as_complex(torch.stack(key[source].chunk(2, dim=-1), dim=-1).contiguous())
    turned = turned * torch.polar(torch.ones_like(angle), angle)
    wanted = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(got_key[target], wanted, atol=2e-4)  # float32 angles of positions up to 90
    rest = torch.ones(len(key), dtype=torch.bool)
    rest[target] = False
    assert torch.equal(got_key[rest], key[rest])
    assert torch.equal(got_value[rest], value[rest])


def test_three_hundred_restores_later_the_master_and_what_it_gives_are_the_same() -> None:
    layer = layer_of(CpuWriter("vec"), torch.bfloat16, 32, 64, rope_table(64))
    kv, table, at = CpuPagedKV([layer]), list(range(2, 16)), torch.arange(400, 440)

    def restored_at_400() -> tuple[torch.Tensor, torch.Tensor]:
        kv.restore([job([[4, 400, 40]], table, [0, 1])])
        key, value = kv.read(layer, torch.tensor(table))
        return key[at], value[at]

    master, first = layer.cache[:2].clone(), restored_at_400()
    for position in range(100, 400):
        kv.restore([job([[4, position, 40]], table, [0, 1])])
    last = restored_at_400()
    assert torch.equal(layer.cache[:2], master)
    assert all(torch.equal(a, b) for a, b in zip(first, last, strict=True))


@pytest.mark.parametrize("kind", [PagedKV, CpuPagedKV])
def test_jobs_without_spans_are_a_no_op(kind: type[PagedKV]) -> None:
    layer = layer_of(CpuWriter("vec"), torch.float32, 32, 64, rope_table(64))
    before = layer.cache.clone()
    kind([layer]).restore([job([], [3], [0])])
    kind([layer]).restore([])
    assert torch.equal(layer.cache, before)


def test_half_precision_pages_are_left_to_the_backends_writer() -> None:
    layer = layer_of(RowWriter(), torch.float16, 16, 32, rope_table(32))
    PagedKV([layer])
    with pytest.raises(PackingError, match="float16"):
        CpuPagedKV([layer])


def test_spans_expand_to_rows_positions_and_slots() -> None:
    made = Restore.of(job([[5, 3, 2], [20, 15, 3]], [7, 9], [1, 2]), 16)
    assert made.rows.tolist() == made.old.tolist() == [5, 6, 20, 21, 22]
    assert made.new.tolist() == [3, 4, 15, 16, 17]
    assert made.slots.tolist() == [7 * 16 + 3, 7 * 16 + 4, 7 * 16 + 15, 9 * 16, 9 * 16 + 1]


def test_spans_with_positions_of_their_own_are_rotated_by_those() -> None:
    made = Restore.of(job([[5, 3, 2, 105, 203], [20, 15, 3, 120, 315]], [7, 9], [1, 2]), 16)
    assert made.old.tolist() == [105, 106, 120, 121, 122]
    assert made.new.tolist() == [203, 204, 315, 316, 317]
    assert made.slots.tolist() == [7 * 16 + 3, 7 * 16 + 4, 7 * 16 + 15, 9 * 16, 9 * 16 + 1]


@pytest.mark.parametrize("kind", [PagedKV, CpuPagedKV])
def test_only_the_difference_of_positions_turns_a_key(kind: type[PagedKV]) -> None:
    """Index 50 at position 350 from row 10 at position 310: 40 positions on, as from row 10 to index 50."""
    layers = [layer_of(CpuWriter("vec"), torch.float32, 32, 64, rope_table(64)) for _ in range(2)]
    kept, moved = (kind([layer]) for layer in layers)
    kept.restore([job([[10, 50, 40]], [8, 3, 5], [2, 0])])
    moved.restore([job([[10, 50, 40, 310, 350]], [8, 3, 5], [2, 0])])
    (k1, v1), (k2, v2) = (
        kv.read(layer, torch.arange(16)) for kv, layer in zip((kept, moved), layers, strict=True)
    )
    assert torch.equal(v1, v2)
    assert torch.allclose(k1, k2, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [PagedKV, CpuPagedKV])
def test_rows_that_keep_their_position_keep_their_very_bytes(kind: type[PagedKV], dtype: torch.dtype) -> None:
    layer = layer_of(CpuWriter("vec"), dtype, 32, 64, rope_table(64))
    kv = kind([layer])
    key, value = kv.read(layer, torch.tensor([2, 0]))
    kv.restore([job([[10, 50, 40, 777, 777]], [8, 3, 5], [2, 0])])
    got_key, got_value = kv.read(layer, torch.tensor([8, 3, 5]))
    assert torch.equal(got_key[50:90], key[10:50])
    assert torch.equal(got_value[50:90], value[10:50])
