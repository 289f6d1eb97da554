"""Moving keys between positions, against the rotary embeddings that vLLM serves models with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from tokendance_engine.kernels.rope import RopeTable, rotate
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope import (
    DynamicNTKScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

HEADS = 2
F32 = torch.float32
MAKERS: dict[str, Callable[[], Any]] = {
    "default": lambda: RotaryEmbedding(64, 64, 4096, 1e5, True, F32),
    "linear": lambda: LinearScalingRotaryEmbedding(64, 64, 1024, 1e4, True, 4.0, F32),
    "dynamic": lambda: DynamicNTKScalingRotaryEmbedding(64, 64, 1024, 1024, 1e4, True, 4.0, F32),
    "yarn": lambda: YaRNScalingRotaryEmbedding(64, 64, 1024, 1e4, True, 4.0, F32),
    "llama3": lambda: Llama3RotaryEmbedding(64, 64, 4096, 5e5, True, F32, 8.0, 1.0, 4.0, 512),
    "partial": lambda: RotaryEmbedding(80, 32, 4096, 1e4, True, F32),
    "gptj": lambda: RotaryEmbedding(64, 64, 4096, 1e4, False, F32),
    "gptj-partial": lambda: RotaryEmbedding(96, 64, 4096, 1e4, False, F32),
}


class Rotary:
    """One of vLLM's embeddings, our table of it, and the same raw keys at any position."""

    def __init__(self, kind: str) -> None:
        with set_current_vllm_config(VllmConfig()):
            self.module = MAKERS[kind]()
        self.table = RopeTable(self.module._compute_cos_sin_cache().float(), self.module.is_neox_style)
        self.last = len(self.table.cos_sin) - 1
        self.dim = int(self.module.head_size)

    def raw(self, n: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(n, HEADS * self.dim, generator=torch.Generator().manual_seed(seed))

    def at(self, raw: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys as the model computes them at these positions: [n, heads, dim]."""
        _, key = self.module.forward_native(positions, raw.clone(), raw.clone())
        rows: torch.Tensor = key.view(len(positions), HEADS, self.dim)
        return rows

    def move(self, keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return rotate(keys, *self.table.difference(old, new), neox=self.table.neox)


@pytest.fixture(scope="module", params=MAKERS)
def rotary(request: pytest.FixtureRequest) -> Rotary:
    return Rotary(request.param)


def positions(rotary: Rotary, n: int, seed: int) -> torch.Tensor:
    """Random positions, the first and the last among them."""
    drawn = torch.randint(rotary.last + 1, (n,), generator=torch.Generator().manual_seed(seed))
    drawn[0], drawn[1] = 0, rotary.last
    return drawn


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def test_a_moved_key_equals_a_key_computed_there(rotary: Rotary) -> None:
    raw = rotary.raw(256)
    old, new = positions(rotary, 256, 1), positions(rotary, 256, 2).flip(0)
    fresh = rotary.at(raw, new)
    assert error(rotary.at(raw, old), fresh) > 0.1, "the positions do not differ enough to show anything"
    assert error(rotary.move(rotary.at(raw, old), old, new), fresh) < 2e-6


def test_bf16_keys_move_within_a_few_roundings(rotary: Rotary) -> None:
    raw = rotary.raw(256)
    old, new = positions(rotary, 256, 3), positions(rotary, 256, 4).flip(0)
    moved = rotary.move(rotary.at(raw, old).bfloat16(), old, new)
    assert moved.dtype == torch.bfloat16
    assert error(moved, rotary.at(raw, new)) < 2 * torch.finfo(torch.bfloat16).eps


def test_moving_back_gives_the_original(rotary: Rotary) -> None:
    raw, old, new = rotary.raw(64), positions(rotary, 64, 5), positions(rotary, 64, 6).flip(0)
    stored = rotary.at(raw, old)
    assert error(rotary.move(rotary.move(stored, old, new), new, old), stored) < 2e-6


def test_staying_put_changes_nothing_visible(rotary: Rotary) -> None:
    raw, old = rotary.raw(64), positions(rotary, 64, 7)
    stored = rotary.at(raw, old)
    assert torch.allclose(rotary.move(stored, old, old), stored, rtol=1e-6, atol=1e-6)


def hops(rotary: Rotary) -> torch.Tensor:
    return torch.randint(rotary.last + 1, (1000,), generator=torch.Generator().manual_seed(9))


def test_any_of_a_thousand_moves_of_one_stored_key_is_as_close_as_the_first(rotary: Rotary) -> None:
    raw, to = rotary.raw(1).expand(1000, -1), hops(rotary)
    start = torch.full((1000,), rotary.last // 3)
    stored = rotary.at(raw, start).bfloat16()
    before = stored.clone()
    moved, fresh = rotary.move(stored, start, to), rotary.at(raw, to)
    assert torch.equal(stored, before), "moving changed the stored key"
    assert max(map(error, moved, fresh)) < 2 * torch.finfo(torch.bfloat16).eps


def test_carrying_a_moved_key_on_would_drift_so_every_move_starts_from_the_stored_one() -> None:
    rotary = Rotary("default")
    raw, start = rotary.raw(1), torch.tensor([rotary.last // 3])
    stored = rotary.at(raw, start).bfloat16()
    carried, here = stored, start
    for to in hops(rotary):
        carried, here = rotary.move(carried, here, to[None]), to[None]
    direct = rotary.move(stored, start, here)
    assert error(carried, rotary.at(raw, here)) > 5 * error(direct, rotary.at(raw, here))


def test_dimensions_beyond_the_rotated_ones_keep_their_bits() -> None:
    partial = Rotary("partial")
    raw, old, new = partial.raw(32), positions(partial, 32, 1), positions(partial, 32, 2).flip(0)
    stored = partial.at(raw, old)
    assert partial.table.rot == 32
    assert torch.equal(partial.move(stored, old, new)[..., 32:], stored[..., 32:])


def test_yarn_scales_a_key_once_not_again_with_every_move() -> None:
    yarn = Rotary("yarn")
    assert yarn.module.mscale > 1.1, "without a scale this test shows nothing"
    raw, old, new = yarn.raw(32), positions(yarn, 32, 1), positions(yarn, 32, 2).flip(0)
    stored = yarn.at(raw, old)
    assert float(yarn.move(stored, old, new).norm() / stored.norm()) == pytest.approx(1.0, abs=1e-6)


def test_pairings_are_not_interchangeable() -> None:
    gptj = Rotary("gptj")
    raw, old, new = gptj.raw(32), positions(gptj, 32, 1), positions(gptj, 32, 2).flip(0)
    wrong = rotate(gptj.at(raw, old), *gptj.table.difference(old, new), neox=True)
    assert error(wrong, gptj.at(raw, new)) > 0.1
