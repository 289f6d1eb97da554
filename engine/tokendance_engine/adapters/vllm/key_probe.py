"""The support gate's measurement on the loaded model: what its own attention modules do to keys.

A rotary module alone does not tell whether a key that was moved is the key the model would have computed: the model
may scale or normalise keys after rotating them (harmless only where that commutes with a rotation), rotate them by a
module that was not found, or let values depend on positions. So every attention module is run on the same hidden states
at two sets of positions, up to the call of vLLM's attention layer, and what arrives there is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from tokendance_engine.adapters.vllm.pages import Layer
from tokendance_engine.adapters.vllm.support import BOUND, UnsupportedError
from tokendance_engine.kernels.rope import rotate

_SAMPLES = 6


class _ReachedError(Exception):
    """What the attention layer was given; raised in its place, so that nothing behind it runs (no collective)."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        super().__init__()
        self.key, self.value = key, value


@torch.inference_mode()
def check_keys(
    model: torch.nn.Module, layers: Mapping[str, Layer], hidden_size: int, dtype: torch.dtype
) -> None:
    """Compare keys that were moved with keys computed in place, layer by layer.

    Args:
        model: the loaded model.
        layers: name of the attention layer -> layer.
        hidden_size: width of what its attention modules are given; `dtype`: of that.

    Raises:
        UnsupportedError: naming the layer, and how far they differ or why it could not be run.
    """
    modules = dict(model.named_modules())
    lengths = [len(layer.rope.cos_sin) for layer in layers.values() if layer.rope is not None]
    last = min(lengths, default=64) - 1
    for name, layer in layers.items():
        device = layer.cache.device
        old = torch.tensor([0, 5, last // 3, last, 1, last // 2], device=device)
        new = torch.tensor([last, last // 2, 7, 0, last // 4, last // 3], device=device)
        states = torch.randn(_SAMPLES, hidden_size, generator=torch.Generator().manual_seed(1))
        states = states.to(device, dtype)
        try:
            key, value = _reached(
                modules[name.rpartition(".")[0]], layer.module, torch.cat([old, new]), states.repeat(2, 1)
            )
            _, heads, _, width = layer.cache.shape
            keys, values = (x.reshape(2, _SAMPLES, heads, width // 2) for x in (key, value))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:200]
            raise UnsupportedError(f"layer {name}: its keys could not be checked ({told})") from error
        moved = keys[0]
        if layer.rope is not None:
            moved = rotate(moved, *layer.rope.difference(old, new), neox=layer.rope.neox)
        bound = BOUND.get(dtype, 0.0)
        for what, got, wanted in (("moved keys", moved, keys[1]), ("values", values[0], values[1])):
            gap = difference(got, wanted)
            if not gap <= bound:
                raise UnsupportedError(
                    f"layer {name}: {what} differ by {gap:.2e} from those computed in place, allowed {bound:.0e}"
                )


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest relative error of a row, in float32."""
    gap = (got.float() - wanted.float()).flatten(1).norm(dim=1)
    return float((gap / wanted.float().flatten(1).norm(dim=1).clamp_min(1e-20)).max())


def _reached(
    parent: torch.nn.Module, attention: torch.nn.Module, positions: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values that an attention module hands to its attention layer."""

    def stop(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **more: Any
    ) -> NoReturn:
        raise _ReachedError(key, value)

    attention.forward = stop
    try:
        parent.forward(positions=positions, hidden_states=states)
    except _ReachedError as reached:
        return reached.key, reached.value
    finally:
        del attention.forward
    raise RuntimeError("the attention layer was not reached")
