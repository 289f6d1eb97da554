"""TokenDance SDK: assemble multi-agent rounds and send them to any OpenAI-compatible server.

Importing the package is cheap: names are loaded on first use, so an inactive engine plugin that only needs
`tokendance_sdk.protocol` never imports openai.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Block": "blocks",
    "escape": "blocks",
    "unescape": "blocks",
    "Layout": "layout",
    "RoundPrompt": "prompt",
    "TokenDance": "client",
    "AsyncTokenDance": "client",
    "RoundReport": "report",
    "TokenDanceError": "errors",
    "SEPARATOR": "protocol",
}

__all__ = [
    "SEPARATOR",
    "AsyncTokenDance",
    "Block",
    "Layout",
    "RoundPrompt",
    "RoundReport",
    "TokenDance",
    "TokenDanceError",
    "__version__",
    "escape",
    "unescape",
]

if TYPE_CHECKING:
    from tokendance_sdk.blocks import Block, escape, unescape
    from tokendance_sdk.client import AsyncTokenDance, TokenDance
    from tokendance_sdk.errors import TokenDanceError
    from tokendance_sdk.layout import Layout
    from tokendance_sdk.prompt import RoundPrompt
    from tokendance_sdk.protocol import SEPARATOR
    from tokendance_sdk.report import RoundReport


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendance_sdk' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tokendance_sdk.{_HOME[name]}"), name)
