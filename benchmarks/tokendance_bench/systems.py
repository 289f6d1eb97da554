"""The serving systems that benchmarks compare, by the names of `--systems`.

Systems with `tag` send members of rounds; the others send the same prompts as ordinary requests. In-process benchmarks
play all of them on one engine (an untagged request takes vLLM's own path); served ones start a server for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokendance_sdk.layout import Layout
from tokendance_sdk.protocol import RoundTag

Server = Literal["vllm", "tokendance", "lmcache", "url"]
CACHEBLEND_PERCENT = 15
"""Share of reused tokens that CacheBlend recomputes, as published."""


@dataclass(frozen=True, slots=True)
class System:
    """One system.

    Attributes:
        what: for people.
        tag: fields of the round tag; None: ordinary requests.
        server: what has to be started to serve it.
        layout: where shared blocks stand in its prompts.
        url: of a server that is not ours to start.
    """

    name: str
    what: str
    tag: Mapping[str, Any] | None = None
    server: Server = "vllm"
    layout: Layout = field(default_factory=Layout.canonical)
    url: str = ""

    @property
    def key(self) -> str:
        """Its name in keys of a headline: `tokendance-fast-copy` -> `fast_copy`."""
        return self.name.removeprefix("tokendance-").removeprefix("vllm-").replace("-", "_")


def _ours(name: str, what: str, **tag: Any) -> System:
    return System(name, what, tag, "tokendance")


_SERIAL = "serial"
_BLEND: dict[str, Any] = {"backend": "cacheblend", "options": {"percent": CACHEBLEND_PERCENT}}
_BLOCKS: dict[str, Any] = {"backend": "cacheblend-blocks", "options": {"percent": CACHEBLEND_PERCENT}}
_EPIC: dict[str, Any] = {"backend": "epic"}

_ALL = (
    System("vllm", "vLLM with prefix caching, as users have it today"),
    System(
        "vllm-shared-first",
        "the same, shared blocks before the history: exact, histories computed in every round",
        layout=Layout.shared_first(),
    ),
    System(
        "lmcache", "vLLM with LMCache: prefixes also from RAM (the paper's ordinary path)", server="lmcache"
    ),
    _ours("tokendance-balanced", "fidelity balanced, pages shared where members align", fidelity="balanced"),
    _ours("tokendance-fast", "fidelity fast, pages shared where members align", fidelity="fast"),
    _ours(
        "tokendance-balanced-copy",
        "fidelity balanced, every member's own pages",
        fidelity="balanced",
        placement="copy",
    ),
    _ours(
        "tokendance-fast-copy", "fidelity fast, every member's own pages", fidelity="fast", placement="copy"
    ),
    _ours(
        "tokendance-cacheblend15",
        "CacheBlend's selection, whole round at once",
        **_BLEND,
    ),
    _ours(
        "serial-cacheblend15",
        "CacheBlend, 15 % recomputed, one request at a time (the paper's CacheBlend-full)",
        **_BLEND,
        execution=_SERIAL,
    ),
    _ours(
        "serial-balanced",
        "our default backend one request at a time",
        fidelity="balanced",
        execution=_SERIAL,
    ),
    _ours("serial-fast", "the same with fidelity fast", fidelity="fast", execution=_SERIAL),
    _ours(
        "serial-balanced-copy",
        "our default backend one request at a time, every member's own pages",
        fidelity="balanced",
        placement="copy",
        execution=_SERIAL,
    ),
    _ours("tokendance-blocks15", "CacheBlend by blocks, once per round, whole round at once", **_BLOCKS),
    _ours("serial-blocks15", "CacheBlend by blocks, one request at a time", **_BLOCKS, execution=_SERIAL),
    _ours("tokendance-epic32", "EPIC, the first 32 tokens of each block, whole round at once", **_EPIC),
    _ours("serial-epic32", "EPIC, one request at a time", **_EPIC, execution=_SERIAL),
)
SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}
ALIASES = {"tokendance": "tokendance-balanced", "serial": "serial-cacheblend15"}


def missing(system: System) -> str | None:
    """What this version of the engine lacks for a system; None if nothing."""
    for name in system.tag or ():
        if name not in RoundTag.model_fields:
            return f"requests have no field {name!r}"
    backend = (system.tag or {}).get("backend")
    return None if backend is None or backend in backends() else f"there is no backend {backend!r}"


def backends() -> frozenset[str]:
    """Names of the engine's PIC backends; empty where the engine is not installed."""
    try:
        from tokendance_engine.reuse.backends import names
    except ModuleNotFoundError:
        return frozenset()
    return frozenset(names())


def named(name: str, allowed: Iterable[str] = tuple(SYSTEMS)) -> System:
    """A system by name or alias.

    Raises:
        ValueError: there is none among the allowed, or this version lacks what it needs.
    """
    system = SYSTEMS.get(ALIASES.get(name, name))
    if system is None or system.name not in allowed:
        raise ValueError(f"no system {name!r} here; allowed: {', '.join(allowed)}")
    if lacks := missing(system):
        raise ValueError(f"system {name!r} cannot be measured with this version: {lacks}")
    return system


def at_url(text: str) -> System:
    """`NAME=URL`: a server that runs already and speaks OpenAI's protocol.

    Raises:
        argparse.ArgumentTypeError: not of that form.
    """
    name, sign, url = text.partition("=")
    if not (name and sign and url.startswith(("http://", "https://"))):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: NAME=URL, the URL ending in /v1")
    if name in SYSTEMS:
        raise argparse.ArgumentTypeError(f"{name!r} is one of our systems; choose another name for {url}")
    return System(name, f"a server at {url}", server="url", url=url.rstrip("/"))


def add_option(
    options: argparse.ArgumentParser,
    default: Iterable[str],
    allowed: Iterable[str],
    quick: Iterable[str] | None = None,
) -> None:
    """Add `--systems`; `chosen` reads it.

    Args:
        default: without the option; of these, the ones that this version lacks are left out.
        quick: the same with `--quick`.
    """
    allowed, default = tuple(allowed), tuple(default)
    options.set_defaults(
        allowed_systems=allowed,
        default_systems=default,
        quick_systems=default if quick is None else tuple(quick),
    )
    options.add_argument(
        "--systems", nargs="+", metavar="NAME", help=f"of {', '.join(allowed)}; default: {', '.join(default)}"
    )


def add_urls(options: argparse.ArgumentParser) -> None:
    """Add `--url NAME=URL`: further systems that run already."""
    options.add_argument(
        "--url",
        action="append",
        default=[],
        type=at_url,
        metavar="NAME=URL",
        help="also a server that runs already and speaks OpenAI's protocol; may be repeated",
    )


def chosen(options: argparse.ArgumentParser, args: argparse.Namespace) -> list[System]:
    """The systems asked for, then those at URLs; a wrong name ends the program with the allowed ones.

    `args.systems` holds their names afterwards.
    """
    if args.systems is None:
        names = args.quick_systems if getattr(args, "quick", False) else args.default_systems
        args.systems = [name for name in names if not missing(SYSTEMS[name])]
    try:
        return [named(name, args.allowed_systems) for name in args.systems] + list(getattr(args, "url", []))
    except ValueError as error:
        options.error(f"--systems: {error}")
