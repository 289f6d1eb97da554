"""Stop a forward pass of the model at one layer's keys.

A layer's attention hands its keys to its backend before anything of that layer is written. The backend's entrance is
replaced for the length of one pass; in compiled models it is reached the same way, since attention is an operator of
its own there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


class Reached(Exception):  # noqa: N818 - no error: the pass has come as far as it should
    """The pass is at the layer."""


@dataclass(slots=True)
class Stop:
    """What the layer was given.

    Attributes:
        key: [tokens, heads, dim], rotated; None until the pass is there.
    """

    key: torch.Tensor | None = None

    def write(self, layer: Any, key: torch.Tensor, *rest: Any, **more: Any) -> None:
        """In the place of a backend's cache writer."""
        self.key = key.clone()
        raise Reached

    def attend(self, layer: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any, **more: Any) -> None:
        """In the place of the attention of a backend that writes its cache itself."""
        self.write(layer, key)


@contextmanager
def reached(impl: Any) -> Iterator[Stop]:
    """Passes that come to this attention backend's instance end with `Reached`."""
    stop = Stop()
    impl.do_kv_cache_update, impl.forward = stop.write, stop.attend
    try:
        yield stop
    finally:
        del impl.do_kv_cache_update, impl.forward
