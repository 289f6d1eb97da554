"""Errors of the storage package."""

from __future__ import annotations

from tokendance_engine.errors import EngineError


class StorageError(EngineError):
    """Base of every error the storage package raises on purpose."""


class ShapeError(StorageError):
    """An array or tensor does not have the shape, type or order that is asked for."""


class BlobError(StorageError):
    """A stored blob cannot be used.

    Attributes:
        reason: one of `REASONS`; misses are counted by it.
    """

    REASONS = ("truncated", "foreign", "version", "layout", "checksum", "content")

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TierError(StorageError):
    """A tier cannot be opened as configured; names the setting, the value and what is allowed."""
