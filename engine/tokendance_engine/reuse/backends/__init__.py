"""PIC (position-independent caching) backends: where shared KV comes from, and what of it to compute anyway.

`docs/backends.md` explains how to write one.
"""

from tokendance_engine.reuse.backends.interface import Backend, Check, Piece, Source
from tokendance_engine.reuse.backends.options import Choice, Option, Whole
from tokendance_engine.reuse.backends.registry import GROUP, built_in, check_name, make_backend, names

__all__ = [
    "GROUP",
    "Backend",
    "Check",
    "Choice",
    "Option",
    "Piece",
    "Source",
    "Whole",
    "built_in",
    "check_name",
    "make_backend",
    "names",
]
