"""`TokenDance`: send whole rounds through an OpenAI client you already have."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from openai import APIStatusError, OpenAI, OpenAIError

from tokendance_sdk import plain
from tokendance_sdk.async_client import AsyncRounds, AsyncTokenDance
from tokendance_sdk.errors import RoundStreamError
from tokendance_sdk.events import RoundAccumulator, RoundEvent
from tokendance_sdk.layout import Layout
from tokendance_sdk.progress import Progress, ProgressMeter
from tokendance_sdk.prompt import DEFAULT_LABEL, History, Label
from tokendance_sdk.requests import Agent, RoundCall, prepare
from tokendance_sdk.results import RawAnswer, RoundResult, parse_response, past_deadline, replaced
from tokendance_sdk.session import Context, Session, open_state
from tokendance_sdk.streams import RoundStream
from tokendance_sdk.tracing import round_span, traced
from tokendance_sdk.wire import (
    ROUNDS,
    EventStream,
    Mode,
    PlainServerWarning,
    ServerKind,
    broken_off,
    failed_round,
    is_no_such_route,
    post,
    status_url,
)

__all__ = ["AsyncRounds", "AsyncTokenDance", "PlainServerWarning", "Rounds", "TokenDance"]


class TokenDance:
    """Rounds on top of an `OpenAI` client, with its address, key, retries, proxies and timeouts.

    A server without TokenDance is found out at the first round (one `PlainServerWarning`); its rounds are
    sent as chat requests in parallel, with the same results.

    Args:
        client: any `OpenAI` client; it stays the caller's to close.
        mode: `auto`, or what the server is known to be (`rounds`, `plain`).
        max_parallel: chat requests in flight at once on a plain server.
    """

    def __init__(self, client: OpenAI, *, mode: Mode = "auto", max_parallel: int = 64) -> None:
        self.client = client
        self.kind = ServerKind(mode)
        self.max_parallel = max_parallel
        self.rounds = Rounds(self)

    def session(
        self,
        session_id: str,
        *,
        model: str,
        agents: Mapping[str, History],
        context: Context = "window",
        layout: Layout | None = None,
        label: Label | None = DEFAULT_LABEL,
        **defaults: Any,
    ) -> Session:
        """Rounds that follow one another, ids `session_id:0`, `session_id:1`, ...

        Args:
            agents: agent -> its private history (text, or messages), in the order of the round.
            context: what stays of earlier rounds: `window` the agent's own outputs, `transcript` everybody's.
            defaults: fields for every round, as for `rounds.create`.
        """
        state = open_state(session_id, agents, context, layout, label)
        return Session(self, state, {"model": model, **defaults})

    def status(self) -> dict[str, Any] | None:
        """What the server says about its TokenDance engine; None from a server that has none."""
        try:
            answer = self.client.get(status_url(self.client.base_url), cast_to=object)
        except APIStatusError as error:
            if is_no_such_route(error):
                return None
            raise
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None

    def is_plain(self, error: APIStatusError) -> bool:
        """Whether a refused round means that the server knows no rounds; asks it where that is still open."""
        if self.kind.plain is None and is_no_such_route(error) and self.status() is None:
            self.kind.found_plain(self.client.base_url)
        return self.kind.plain is True


class Rounds:
    """`TokenDance(...).rounds`."""

    def __init__(self, owner: TokenDance) -> None:
        self._owner = owner

    def create(
        self,
        *,
        model: str,
        round_id: str,
        agents: Sequence[Agent],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        raise_on_error: bool = False,
        retry_failed: int = 0,
        deadline: float | None = None,
        progress: Progress | None = None,
        **fields: Any,
    ) -> RoundResult:
        """Send one round and wait for all of it.

        Args:
            agents: assembled `RoundPrompt`s, or members in wire form.
            overrides: agent -> fields that it wants otherwise than the round (`max_tokens`, `fidelity`).
            raise_on_error: raise `RoundFailedError` when a member fails; otherwise failures are values.
            retry_failed: how often members that failed on the server's side are sent again, alone; they keep their
                error where that fails too.
            deadline: seconds after which stragglers are cut off: their results are errors, the others stay.
            progress: called as members' answers end; see `RoundProgress`.
            fields: `session_id`, `fidelity`, `backend`, `options`, `blocks`; sampling parameters; `timeout`,
                `extra_headers`, `extra_query`, `extra_body`.

        Raises:
            PromptError: the round is malformed; nothing was sent.
            RoundFailedError: see `raise_on_error`.
            ServerError: the server's answer is no round.
            openai.OpenAIError: the round as a whole was refused, or could not be sent.
        """
        call = prepare(model, round_id, agents, overrides, fields)
        ends = None if deadline is None else time.monotonic() + deadline
        meter = ProgressMeter.of(progress, call)
        with round_span(call) as note:
            if meter is not None:
                meter.start()
            result = self._send(call, ends, meter)
            for _ in range(retry_failed):
                again = result.retryable
                if not again or (ends is not None and time.monotonic() >= ends):
                    break
                with contextlib.suppress(OpenAIError, RoundStreamError):  # what is answered is not given up
                    result = replaced(result, self._send(call.only(again), ends))
            note(result)
        if meter is not None:
            meter.finish(result)
        return result.raise_for_errors() if raise_on_error else result

    def stream(
        self,
        *,
        model: str,
        round_id: str,
        agents: Sequence[Agent],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> RoundStream:
        """Send one round and get its pieces as they come; arguments and errors as for `create`.

        The request is sent at the first step of the iteration.
        """
        return self._open(prepare(model, round_id, agents, overrides, fields).streaming())

    def _open(self, call: RoundCall) -> RoundStream:
        total = RoundAccumulator(call.request)
        return RoundStream(traced(call, self._events(call, total), total), total)

    def _send(self, call: RoundCall, ends: float | None, meter: ProgressMeter | None = None) -> RoundResult:
        if ends is not None or meter is not None:
            return self._send_until(call.streaming(), ends, meter)
        owner = self._owner
        started = time.perf_counter()
        if not owner.kind.plain:
            try:
                answer: RawAnswer | None = post(owner.client, ROUNDS, call.body, call)
            except APIStatusError as error:
                answer = failed_round(error)
                if answer is None and not owner.is_plain(error):
                    raise
            if answer is not None:
                owner.kind.found_rounds()
                wall_ms = (time.perf_counter() - started) * 1000
                return parse_response(answer, call.request.round_id, wall_ms=wall_ms)
        return plain.send(owner.client, call, owner.max_parallel)

    def _send_until(self, call: RoundCall, ends: float | None, meter: ProgressMeter | None) -> RoundResult:
        total = RoundAccumulator(call.request)
        events = self._events(call, total)
        late = threading.Event()
        raised: list[BaseException] = []

        def read() -> None:
            try:
                for event in events:
                    if late.is_set():
                        break
                    if meter is not None:
                        meter.feed(event)
            except BaseException as error:
                raised.append(error)
            finally:
                events.close()

        reader = threading.Thread(target=read, name="tokendance-round", daemon=True)
        reader.start()
        reader.join(None if ends is None else max(0.0, ends - time.monotonic()))
        late.set()
        if raised:
            raise raised[0]
        return total.result(past_deadline())

    def _events(self, call: RoundCall, total: RoundAccumulator) -> Generator[RoundEvent, None, None]:
        owner = self._owner
        if not owner.kind.plain:
            try:
                events = owner.client.post(
                    ROUNDS,
                    cast_to=object,
                    body=call.body,
                    options=call.options,
                    stream=True,
                    stream_cls=EventStream,
                )
            except APIStatusError as error:
                answer = failed_round(error)
                if answer is not None:
                    yield total.feed("report", answer.body)
                    return
                if not owner.is_plain(error):
                    raise
            else:
                owner.kind.found_rounds()
                with events:
                    yield from self._read(events, total, call.request.round_id)
                return
        total.plain = True
        yield from plain.stream(owner.client, call, total, owner.max_parallel)

    def _read(
        self, events: EventStream, total: RoundAccumulator, round_id: str
    ) -> Generator[RoundEvent, None, None]:
        pairs = iter(cast("Any", events))
        while True:
            try:
                name, data = next(pairs)
            except StopIteration:
                return
            except Exception as error:
                raise broken_off(round_id, error) from error
            yield total.feed(name, data)
