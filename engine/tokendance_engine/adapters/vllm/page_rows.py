"""Single rows of page tables, for backends that look at K/V or correct it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tokendance_engine.adapters.vllm.mirror_pages import reader
from tokendance_engine.adapters.vllm.pages import PagedKV, rotation, write_rows
from tokendance_engine.kernels.rope import rotate
from tokendance_engine.reuse.ports import PageTable

Indices = npt.NDArray[np.int64]


class PageRows:
    """Rows of vLLM's pages.

    Args:
        kv: the pages.
    """

    def __init__(self, kv: PagedKV) -> None:
        self._kv = kv
        self.layers = len(kv.layers)

    def read(self, layer: int, pages: PageTable, at: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the tokens with these indices, [n, heads, dim] each, as stored."""
        return reader(self._kv, pages)(layer, at)

    @torch.inference_mode()
    def turn(self, layer: int, keys: torch.Tensor, old: Indices, new: Indices) -> torch.Tensor:
        """Keys [n, heads, dim] of a layer rotated from old to new positions, float32."""
        rope = self._kv.layers[layer].rope
        if rope is None:
            return keys.float()
        return rotate(keys.float(), *rotation(rope, old, new, keys.device), neox=rope.neox)

    @torch.inference_mode()
    def write(
        self, layer: int, pages: PageTable, at: Indices, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put K and V in their place, through the attention backend's own writer."""
        size = self._kv.page_size
        slots = torch.from_numpy(pages[at // size].astype(np.int64) * size + at % size)
        write_rows(self._kv.layers[layer], key, value, slots.to(key.device))
