"""Errors of the engine plugin. Messages say what was wrong, the value, and what is allowed."""

from __future__ import annotations

from typing import Any


class EngineError(Exception):
    """Base of every error the engine plugin raises on purpose."""


class ConfigError(EngineError):
    """A setting is wrong: names the source, the value, and what is allowed."""


class UnsupportedVersionError(EngineError):
    """The installed vLLM is outside the range that the hooks were read against."""


class RequestRejectedError(EngineError):
    """A request that cannot be served as asked.

    Attributes:
        status: HTTP status, 400 (wrong) or 413 (a limit is exceeded).
        param: the field that was wrong, or None.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def to_openai(self) -> dict[str, Any]:
        """The error as an OpenAI-compatible server reports it."""
        kind = "BadRequestError" if self.status == 400 else "RequestTooLargeError"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}}
