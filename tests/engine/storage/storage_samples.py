"""Models, ropes and members made up for the storage tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from tokendance_engine.kernels.rope import RopeTable
from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.blocks import Flags, Index, runs
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.keys import FamilyKey, Keys, Scope
from tokendance_engine.storage.layout import Layout, Model
from tokendance_engine.storage.restore import Remake, materialise, remake_with
from tokendance_engine.storage.rows import ReadRows, bits
from tokendance_engine.storage.store import Store

SMALL = Layout(layers=2, heads=2, dim=64, dtype="float32")


def keys(layout: Layout = SMALL, scope: Scope = Scope.SESSION, **model: object) -> Keys:
    return Keys(Model("m", layout, **model), scope, b"s" * 32)  # type: ignore[arg-type]


@cache
def rope(dim: int, positions: int = 8192) -> RopeTable:
    half = dim // 2
    angles = torch.arange(positions)[:, None] / 10_000 ** (torch.arange(half) / half)
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1).float())


def remake(layout: Layout) -> Remake:
    return remake_with([rope(layout.dim)] * layout.layers)


def random_tokens(rng: np.random.Generator, size: int) -> Tokens:
    return rng.integers(0, 50_000, size).astype(np.int32)


def random_rows(layout: Layout, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, layout.layers, size, layout.heads, layout.dim)
    return torch.randn(shape, generator=generator).to(layout.torch_dtype)


def reader(kv: torch.Tensor) -> ReadRows:
    """Pages that hold these rows, [2, layers, n, heads, dim]."""
    return lambda layer, tokens: (kv[0, layer, tokens], kv[1, layer, tokens])


@dataclass
class Member:
    """What a member's pages hold, and how it came there."""

    tokens: Tokens
    kv: torch.Tensor
    spans: Index

    def taken(self, master_id: int = 1) -> Taken:
        return Taken(master_id, self.spans)


def make_member(
    layout: Layout, master: Tokens, master_kv: torch.Tensor, at: int, own: Flags, seed: int, skip: int = 0
) -> Member:
    """A member that holds a whole master from token `at` on, apart from `own` tokens.

    Args:
        own: one flag per token of the member; those before `at` must be set.
        skip: positions skipped before token `at` (the member's positions from there on are token + skip).
    """
    size = len(own)
    rng = np.random.default_rng(seed)
    tokens, kv = random_tokens(rng, size), random_rows(layout, size, seed)
    again = remake(layout)
    spans = []
    for start, end in runs(~own):
        old, new = np.arange(start - at, end - at), np.arange(start, end)
        tokens[start:end] = master[old]
        for layer in range(layout.layers):
            kv[0, layer, start:end] = again(layer, master_kv[0, layer, old], old, new + skip)
            kv[1, layer, start:end] = master_kv[1, layer, old]
        spans.append((start - at, start, end - start))
    return Member(tokens, kv, np.array(spans, dtype=np.int64).reshape(-1, 3))


def assert_restores(store: Store, family: FamilyKey, agent: str, kv: torch.Tensor, layout: Layout) -> None:
    """All of a member's tokens come back as the very bytes its pages held."""
    size = kv.shape[2]
    work = store.restore(family, agent, 0, size)
    assert work is not None, f"{agent} is gone"
    again = remake(layout)
    for layer in range(layout.layers):
        for plane, made in enumerate(materialise(work, layer, again)):
            assert torch.equal(bits(made), bits(kv[plane, layer])), f"{agent}, layer {layer}, plane {plane}"
