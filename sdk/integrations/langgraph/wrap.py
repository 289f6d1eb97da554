"""A compiled graph, run so that its chat model's calls can meet.

It becomes a subclass of itself, so that it stays what it was in every other way.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel
from tokendance_sdk.integrations.langgraph.memory import Sessions, texts_in
from tokendance_sdk.integrations.langgraph.places import RUN_KEY, valid_id

G = TypeVar("G", bound=Pregel[Any, Any, Any, Any])

MEMBERS = 256
"""Sync nodes that run at once in a wrapped graph: LangChain's own default follows the number of cores."""


def wrapped(graph: G, members: int, sessions: Sessions) -> G:
    """A copy of `graph` that runs up to `members` calls at once and learns what its thread's checkpoint holds."""
    kind = type(graph)
    entry = {"members": members, "sessions": sessions}
    copy: Any = object.__new__(type(f"Round{kind.__name__}", (_Round, kind), entry))
    copy.__dict__.update(graph.__dict__)
    return cast("G", copy)


class _Round(Pregel[Any, Any, Any, Any]):
    """Every other way to run a graph (`invoke`, `batch`, `astream_events`, ...) goes through these two."""

    members: int
    sessions: Sessions

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        prepared, place = self._prepare(config, threads=True)
        if place is not None and isinstance(self.checkpointer, BaseCheckpointSaver):
            self._learn(place, self.checkpointer.get_tuple(place))
        yield from super().stream(input, prepared, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        prepared, place = self._prepare(config, threads=False)
        if place is not None and isinstance(self.checkpointer, BaseCheckpointSaver):
            self._learn(place, await self.checkpointer.aget_tuple(place))
        async with aclosing(cast("Any", super().astream(input, prepared, **kwargs))) as parts:
            async for part in parts:
                yield part

    def _prepare(
        self, config: RunnableConfig | None, *, threads: bool
    ) -> tuple[RunnableConfig, RunnableConfig | None]:
        """The config to run with, and where to look for what was said before; None if that is known."""
        prepared = RunnableConfig(**(config or {}))
        own = self.config or {}
        most = prepared.get("max_concurrency") or own.get("max_concurrency")
        if most is not None or threads:
            prepared["max_concurrency"] = max(self.members, most or 0)
        configurable = {**own.get("configurable", {}), **prepared.get("configurable", {})}
        thread = configurable.get("thread_id")
        if thread is None:
            prepared["configurable"] = {RUN_KEY: f"g.{uuid.uuid4().hex[:12]}", **configurable}
            return prepared, None
        if configurable.get("checkpoint_ns") or valid_id(str(thread)) in self.sessions:
            return prepared, None
        names = ("thread_id", "checkpoint_ns", "checkpoint_id")
        place = {name: configurable[name] for name in names if configurable.get(name) is not None}
        return prepared, RunnableConfig(configurable={"checkpoint_ns": "", **place})

    def _learn(self, place: RunnableConfig, found: CheckpointTuple | None) -> None:
        """A thread that goes on in a new process: what its agents said is in its checkpoint."""
        known = self.sessions.of(valid_id(str(place["configurable"]["thread_id"])))
        for text in texts_in(found.checkpoint["channel_values"] if found is not None else None):
            known.add(text)
