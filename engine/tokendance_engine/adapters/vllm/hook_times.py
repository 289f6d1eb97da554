"""How much of vLLM's steps is spent in our hooks, counted inside its processes: for measurements, off unless asked for.

With `TOKENDANCE_HOOK_TIMES=PREFIX` in the environment, each process of the engine writes `PREFIX.PID`, a JSON object
with `steps` and `step_seconds` (the engine's steps; 0 in a worker of its own), `hook_calls` and `hook_seconds`. Without
it nothing is wrapped.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX_ENV = "TOKENDANCE_HOOK_TIMES"
WRITE_SECONDS = 0.2
_ONCE = ("worker_class", "register_kv_caches", "bind_kv_cache_manager", "reset_cache", "shutdown")
"""What stands in the connector and is no hook of a step or a request."""


class HookTimes:
    """Counts of one process; a hook called by a hook counts once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inside = False
        self._written = 0.0
        self.counts = {"steps": 0, "step_seconds": 0.0, "hook_calls": 0, "hook_seconds": 0.0}

    def hook(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A hook, timed."""

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return inner(*args, **kwargs)
            self._inside, started = True, time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self._inside = False
                self._count("hook_calls", "hook_seconds", time.perf_counter() - started)

        return timed

    def step(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A step of the engine, timed."""

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self._count("steps", "step_seconds", time.perf_counter() - started)

        return timed

    def _count(self, times: str, seconds: str, spent: float) -> None:
        self.counts[times] += 1
        self.counts[seconds] += spent
        now = time.perf_counter()
        if now - self._written > WRITE_SECONDS:
            self._written = now
            self._path.write_text(json.dumps(self.counts), encoding="utf-8")


def install(prefix: str) -> HookTimes:
    """Wrap the connector's hooks and the engine's steps in this process."""
    from vllm.v1.engine.core import EngineCore

    from tokendance_engine.adapters.vllm.connector import TokenDanceConnector

    times = HookTimes(Path(f"{prefix}.{os.getpid()}"))
    for name, value in list(vars(TokenDanceConnector).items()):
        if callable(value) and not name.startswith("_") and name not in _ONCE:
            setattr(TokenDanceConnector, name, times.hook(value))
    for name in ("step", "step_with_batch_queue"):
        setattr(EngineCore, name, times.step(getattr(EngineCore, name)))
    return times
