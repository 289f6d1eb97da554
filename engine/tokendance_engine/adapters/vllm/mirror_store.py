"""Opening the store of a worker from the engine's settings."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path

import numpy as np
from vllm.config import VllmConfig

from tokendance_engine.adapters.vllm.pages import PagedKV
from tokendance_engine.config import NONE, EngineConfig
from tokendance_engine.storage.keys import Keys, Scope, secret_file
from tokendance_engine.storage.layout import DTYPES, Layout, Model
from tokendance_engine.storage.spill import Spill
from tokendance_engine.storage.store import Store
from tokendance_engine.storage.tier_config import Later, open_tier


def open_store(
    config: VllmConfig, settings: EngineConfig, kv: PagedKV
) -> tuple[Store, Spill | None, Later | None]:
    """The store of one worker, and its tier if there is one (which opens in the background).

    Raises:
        OSError: the secret file can be neither read nor made.
        ShapeError: the KV dtype cannot be stored.
    """
    dtypes = {dtype: name for name, dtype in DTYPES.items()}
    dtype = kv.layers[0].cache.dtype
    layout = Layout(len(kv.layers), kv.heads, kv.dim, dtypes.get(dtype, str(dtype)))
    model, parallel = config.model_config, config.parallel_config
    made = Model(
        str(model.model),
        layout,
        revision=f"{model.revision}:{model.dtype}:{model.quantization}",
        rope=_ropes(kv),
        rank=int(parallel.rank),
        ranks=int(parallel.tensor_parallel_size),
    )
    file = settings.secret_file
    secret = secrets.token_bytes(32) if file == NONE else secret_file(Path(file).expanduser())
    keys = Keys(made, Scope.SESSION, secret)
    tier, spill = None, None
    if settings.tiers != NONE:
        spec, rank = json.loads(settings.tiers), int(parallel.rank)
        tier = Later(lambda: open_tier(spec, rank))
        spill = Spill(keys, tier)
    store = Store(keys, settings.cpu_bytes, idle_seconds=settings.idle_seconds, remake=kv.remake, spill=spill)
    return store, spill, tier


def _ropes(kv: PagedKV) -> str:
    """A digest of the tables themselves: whatever parameters they come from."""
    made = hashlib.blake2b(digest_size=16)
    for layer in {id(x.rope): x for x in kv.layers}.values():
        if layer.rope is not None:
            made.update(np.ascontiguousarray(layer.rope.cos_sin.cpu().numpy()).tobytes())
            made.update(bytes([layer.rope.neox]))
    return made.hexdigest()
