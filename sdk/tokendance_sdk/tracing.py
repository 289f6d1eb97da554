"""OpenTelemetry spans, where `opentelemetry` is installed: one for each round, with a child for each member.

The spans carry no text of prompts or answers. Without `opentelemetry` nothing happens.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from tokendance_sdk.events import RoundAccumulator, RoundEvent
from tokendance_sdk.requests import RoundCall
from tokendance_sdk.results import RoundResult

ROUND_SPAN = "tokendance.round"
MEMBER_SPAN = "tokendance.member"

_TOKENS = ("prompt_tokens", "cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")

Note = Callable[[RoundResult], None]


@functools.cache
def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@contextmanager
def round_span(call: RoundCall, *, current: bool = True) -> Iterator[Note]:
    """A span around a round; call what it yields with the result.

    Args:
        current: make it the current span, so that the HTTP client's spans are its children. Not in generators:
            between two steps the caller's span is current.
    """
    trace = _api()
    if trace is None:
        yield lambda result: None
        return
    tracer = trace.get_tracer("tokendance")
    request = call.request
    attributes = {
        "tokendance.round_id": request.round_id,
        "tokendance.agents": [agent.agent_id for agent in request.agents],
        "tokendance.fidelity": request.fidelity,
        "gen_ai.request.model": request.model,
        **({"tokendance.session_id": request.session_id} if request.session_id else {}),
    }
    started = time.time_ns()
    span = tracer.start_span(
        ROUND_SPAN, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=started
    )
    try:
        if current:
            with trace.use_span(
                span, end_on_exit=False, record_exception=False, set_status_on_exception=False
            ):
                yield lambda result: _note(trace, tracer, span, started, result)
        else:
            yield lambda result: _note(trace, tracer, span, started, result)
    except Exception as error:
        span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
    finally:
        span.end()


def traced(
    call: RoundCall, events: Generator[RoundEvent, None, None], total: RoundAccumulator
) -> Generator[RoundEvent, None, None]:
    """The events of a streamed round, inside a span from the first step to the last."""
    with round_span(call, current=False) as note:
        try:
            yield from events
        finally:
            note(total.result())


async def traced_async(
    call: RoundCall, events: AsyncGenerator[RoundEvent, None], total: RoundAccumulator
) -> AsyncGenerator[RoundEvent, None]:
    """The async twin of `traced`."""
    with round_span(call, current=False) as note:
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            note(total.result())


def _note(trace: Any, tracer: Any, span: Any, started: int, result: RoundResult) -> None:
    totals = result.report.totals
    span.set_attribute("tokendance.plain", result.plain)
    span.set_attribute("tokendance.failed", [member.agent_id for member in result.failed])
    for name in _TOKENS:
        span.set_attribute(f"tokendance.{name}", getattr(totals, name))
    parent = trace.set_span_in_context(span)
    for member in result:
        child = tracer.start_span(
            MEMBER_SPAN,
            context=parent,
            start_time=started,
            attributes={"tokendance.round_id": result.round_id, "tokendance.agent_id": member.agent_id},
        )
        if member.report is not None:
            for name in _TOKENS:
                child.set_attribute(f"tokendance.{name}", getattr(member.report, name))
            if member.report.fallback_reason is not None:
                child.set_attribute("tokendance.fallback_reason", member.report.fallback_reason.value)
        if member.error is not None:
            child.set_status(trace.Status(trace.StatusCode.ERROR, member.error.message))
        child.end()
