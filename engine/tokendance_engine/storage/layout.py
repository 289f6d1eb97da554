"""The shape of one token's KV, and what must agree before stored KV may be used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import torch

from tokendance_engine.storage.errors import ShapeError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of the KV of this worker.

    Attributes:
        layers: attention layers.
        heads: KV heads of this tensor-parallel rank.
        dim: head size.
        dtype: name of the KV dtype, a key of `DTYPES`.
    """

    layers: int
    heads: int
    dim: int
    dtype: str

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.dim) < 1:
            raise ShapeError(f"{self}: layers, heads and dim must be at least 1")
        if self.dtype not in DTYPES:
            raise ShapeError(f"KV dtype {self.dtype!r}; allowed: {', '.join(DTYPES)}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of K and V of one token in all layers."""
        return 2 * self.layers * self.heads * self.dim * self.torch_dtype.itemsize

    def empty(self, rows: int) -> torch.Tensor:
        """Room for `rows` tokens: [2 (K, V), layers, rows, heads, dim], on the CPU."""
        return torch.empty(2, self.layers, rows, self.heads, self.dim, dtype=self.torch_dtype)


@dataclass(frozen=True, slots=True)
class Model:
    """What made the KV. Any difference makes other keys, so that nothing can match across it.

    Attributes:
        name, revision: the model as served.
        rope: every RoPE parameter, spelled out (any stable text).
        adapter: LoRA adapter, or "".
        rank, ranks: tensor-parallel rank and size.
        layout: of this rank.
    """

    name: str
    layout: Layout
    revision: str = ""
    rope: str = ""
    adapter: str = ""
    rank: int = 0
    ranks: int = 1

    def digest(self) -> bytes:
        """16 bytes that stand for all of it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"tokendance-kv").digest()
