"""Backends by name: those of TokenDance, and installed ones of the entry point group `tokendance.pic_backends`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tokendance_engine.errors import ConfigError
from tokendance_engine.reuse.backends.cacheblend import CacheBlend, CacheBlendBlocks
from tokendance_engine.reuse.backends.epic import Epic
from tokendance_engine.reuse.backends.interface import Backend
from tokendance_engine.reuse.backends.master import Everything, Master
from tokendance_engine.reuse.backends.options import resolve

GROUP = "tokendance.pic_backends"

_BUILT_IN: dict[str, type[Backend]] = {
    kind.name: kind for kind in (Master, Everything, Epic, CacheBlend, CacheBlendBlocks)
}
_loaded: dict[str, type[Backend]] = {}


def built_in() -> list[type[Backend]]:
    """TokenDance's own, the default first."""
    return list(_BUILT_IN.values())


def names() -> list[str]:
    """All backends there are, installed ones included."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def check_name(name: str) -> None:
    """Make sure that a backend exists and can be loaded.

    Raises:
        ConfigError: it does not (lists the allowed names), or its package is broken.
    """
    _find(name)


def make_backend(name: str, first: int, options: Mapping[str, Any]) -> Backend:
    """The backend of one request.

    Args:
        name: one of `names()`.
        first: tokens of each block to recompute at this request's fidelity.
        options: the request's `options`.

    Raises:
        ConfigError: unknown name or option, or an option out of range.
    """
    kind = _find(name)
    return kind(**resolve(name, kind.OPTIONS, options, first))


def _find(name: str) -> type[Backend]:
    kind = _BUILT_IN.get(name) or _loaded.get(name)
    if kind is None:
        points = [point for point in entry_points(group=GROUP) if point.name == name]
        if not points:
            raise ConfigError(f"backend {name!r} is unknown; allowed: {', '.join(names())}")
        kind = _loaded[name] = _load(points[0])
    return kind


def _load(point: EntryPoint) -> type[Backend]:
    """The class an entry point names; TokenDance's own names cannot be taken."""
    try:
        kind = point.load()
    except Exception as error:
        raise ConfigError(
            f"backend {point.name!r} could not be loaded from {point.value!r}: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise ConfigError(
            f"backend {point.name!r}: {point.value!r} is {kind!r}; allowed: a subclass of Backend"
        )
    name = getattr(kind, "name", None)
    if name != point.name:
        raise ConfigError(
            f"backend {point.name!r}: its class is called {name!r}; allowed: the name of its entry point"
        )
    return kind
