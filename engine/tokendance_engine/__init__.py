"""TokenDance for vLLM servers: `vllm serve MODEL --plugin tokendance_engine`.

Offline: `LLM(model, **tokendance_engine.llm_kwargs())`, see `tokendance_engine.offline`. Importing the
package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["llm_kwargs", "tag"]

if TYPE_CHECKING:
    from tokendance_engine.offline import llm_kwargs, tag


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tokendance_engine' has no attribute {name!r}")
    from tokendance_engine import offline

    return getattr(offline, name)
