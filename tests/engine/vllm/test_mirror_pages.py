"""Rows between pages and the store: read, re-made and written back to the last bit, by every kind of restore."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from page_layers import HEADS, KINDS, CpuWriter, RowWriter, job, layer_of, rope_table
from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV
from tokendance_engine.adapters.vllm.gpu_pages import TritonPagedKV
from tokendance_engine.adapters.vllm.mirror_pages import reader, write
from tokendance_engine.adapters.vllm.pages import Layer, PagedKV
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.keys import Keys, Scope
from tokendance_engine.storage.layout import Layout, Model
from tokendance_engine.storage.store import Store

Kind = Callable[[list[Layer]], PagedKV]
SIZE, DIM = 32, 64


def interpreted(layers: list[Layer]) -> PagedKV:
    pytest.importorskip("triton")
    return TritonPagedKV(layers, interpret=True)


PATHS = [PagedKV, CpuPagedKV, interpreted]


def pages_of(kind: Kind, dtype: torch.dtype, pages: int = 16) -> PagedKV:
    """Three layers that rotate all dimensions, half of them in the other pairing, and none."""
    writer = RowWriter() if kind is interpreted else CpuWriter("vec")
    ropes = (rope_table(DIM), rope_table(DIM // 2, neox=False), None)
    return kind([layer_of(writer, dtype, SIZE, DIM, r, pages=pages, seed=i) for i, r in enumerate(ropes)])


@pytest.mark.parametrize("kind", PATHS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_remade_key_has_the_bits_that_a_restore_writes(kind: Kind, dtype: torch.dtype) -> None:
    kv = pages_of(kind, dtype)
    before = [kv.read(layer, torch.tensor([2, 0, 1])) for layer in kv.layers]
    kv.restore([job([[3, 30, 50, 3, 430], [60, 90, 30, 60, 60]], [8, 4, 7, 5], [2, 0, 1])])
    rows = np.concatenate([np.arange(3, 53), np.arange(60, 90)])
    at = np.concatenate([np.arange(30, 80), np.arange(90, 120)])
    new = np.concatenate([np.arange(430, 480), np.arange(60, 90)])
    for number, (layer, (key, _)) in enumerate(zip(kv.layers, before, strict=True)):
        wanted = kv.read(layer, torch.tensor([8, 4, 7, 5]))[0][torch.from_numpy(at)]
        made = kv.remake(number, key[torch.from_numpy(rows)], rows.astype(np.int64), new.astype(np.int64))
        assert torch.equal(made, wanted)


@pytest.mark.parametrize(("isa", "dtype", "size", "dim"), KINDS)
def test_rows_are_read_by_token_number_in_any_order(
    isa: str, dtype: torch.dtype, size: int, dim: int
) -> None:
    kv = PagedKV([layer_of(CpuWriter(isa), dtype, size, dim, None)])
    pages = np.array([7, 2, 11], dtype=np.int32)
    key, value = kv.read(kv.layers[0], torch.tensor([7, 2, 11]))
    read = reader(kv, pages)
    for tokens in (np.arange(3 * size), np.arange(2 * size, 3 * size), np.array([2 * size + 1, 5, 3])):
        got_key, got_value = read(0, tokens)
        assert torch.equal(got_key, key[torch.from_numpy(tokens)])
        assert torch.equal(got_value, value[torch.from_numpy(tokens)])


@pytest.mark.parametrize("kind", PATHS, ids=lambda k: k.__name__)
def test_a_member_comes_back_into_other_pages_bit_for_bit(kind: Kind) -> None:
    kv = pages_of(kind, torch.float32)
    layout = Layout(len(kv.layers), HEADS, DIM, "float32")
    store = Store(Keys(Model("m", layout), Scope.SESSION, b"k" * 32), 1 << 24, remake=kv.remake)
    family = store.keys.family("", "s")
    master, member, other = (np.array(x, dtype=np.int32) for x in ([2, 0, 1], [8, 4, 7], [3, 9, 6]))
    kv.restore([job([[3, 20, 70]], member.tolist(), master.tolist())])
    rows = np.arange(96, dtype=np.int32)
    store.put_master(family, 1, rows, reader(kv, master))
    tokens = np.concatenate([np.arange(500, 520), np.arange(3, 73), np.arange(600, 604)]).astype(np.int32)
    receipt = store.put_mirror(family, "a", tokens, Taken(1, np.array([[3, 20, 70]])), reader(kv, member))
    assert receipt is not None
    assert (receipt.read, receipt.referenced) == (24, 70)
    work = store.restore(family, "a", 0, 64)
    assert work is not None
    write(kv, work, other)
    for layer in kv.layers:
        then, now = (kv.read(layer, torch.from_numpy(p[:2]).long()) for p in (member, other))
        assert torch.equal(then[0], now[0])
        assert torch.equal(then[1], now[1])
