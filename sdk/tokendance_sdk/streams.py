"""A streamed round, to iterate over and to ask for its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType

from tokendance_sdk.errors import RoundStreamError
from tokendance_sdk.events import INCOMPLETE, RoundAccumulator, RoundEvent
from tokendance_sdk.results import AgentError, RoundResult


class RoundStream:
    """Yields `RoundEvent`s of all agents as they come; closing it, as `with` does, aborts every member."""

    def __init__(self, events: Generator[RoundEvent, None, None], total: RoundAccumulator) -> None:
        self._events = events
        self._total = total
        self._closed = False
        self._ended = False

    def __iter__(self) -> Iterator[RoundEvent]:
        # not `yield from`: that would close the events when a caller leaves its loop early
        for event in self._events:  # noqa: UP028
            yield event
        self._ended = self._ended or not self._closed

    def result(self) -> RoundResult:
        """Read the rest, then the whole round as `rounds.create` gives it.

        Raises:
            RoundStreamError: it was closed before its end.
        """
        for _ in self:
            pass
        if not self._ended:
            raise RoundStreamError("the stream was closed before its end, so it has no result")
        return self._total.result()

    def so_far(self, pending: AgentError = INCOMPLETE) -> RoundResult:
        """The round as far as it came; members whose answer has not ended failed with `pending`."""
        return self._total.result(pending)

    def close(self) -> None:
        """Abort what still runs; no-op after the end."""
        self._closed = True
        self._events.close()

    def __enter__(self) -> RoundStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRoundStream:
    """The async twin of `RoundStream`."""

    def __init__(self, events: AsyncGenerator[RoundEvent, None], total: RoundAccumulator) -> None:
        self._events = events
        self._total = total
        self._closed = False
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[RoundEvent]:
        async for event in self._events:
            yield event
        self._ended = self._ended or not self._closed

    async def result(self) -> RoundResult:
        """Read the rest, then the whole round as `rounds.create` gives it.

        Raises:
            RoundStreamError: it was closed before its end.
        """
        async for _ in self:
            pass
        if not self._ended:
            raise RoundStreamError("the stream was closed before its end, so it has no result")
        return self._total.result()

    def so_far(self, pending: AgentError = INCOMPLETE) -> RoundResult:
        """The round as far as it came; members whose answer has not ended failed with `pending`."""
        return self._total.result(pending)

    async def close(self) -> None:
        """Abort what still runs; no-op after the end."""
        self._closed = True
        await self._events.aclose()

    async def __aenter__(self) -> AsyncRoundStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
