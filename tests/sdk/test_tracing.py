"""One span for each round, a child for each member; and none of their text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from fake_server import FakeServer
from openai import APIStatusError
from test_client import both, prompts, sync, twin
from tokendance_sdk.tracing import MEMBER_SPAN, ROUND_SPAN

pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ARGUMENTS: dict[str, Any] = {"model": "m", "round_id": "sim:1", "session_id": "sim", "agents": prompts()}
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def _provider() -> None:
    """A process has one provider; another test may have set it."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture
def spans() -> InMemorySpanExporter:
    EXPORTER.clear()
    return EXPORTER


def create(server: FakeServer, kind: str, **options: Any) -> None:
    if kind == "sync":
        owner = sync(server)
        with owner.client:
            owner.rounds.create(**ARGUMENTS, **options)
        return

    async def send() -> None:
        own = twin(server)
        async with own.client:
            await own.rounds.create(**ARGUMENTS, **options)

    asyncio.run(send())


def stream(server: FakeServer, kind: str) -> None:
    if kind == "sync":
        owner = sync(server)
        with owner.client, owner.rounds.stream(**ARGUMENTS) as events:
            list(events)
        return

    async def read() -> None:
        own = twin(server)
        async with own.client, own.rounds.stream(**ARGUMENTS) as events:
            async for _ in events:
                pass

    asyncio.run(read())


def ours(exporter: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


@both
@pytest.mark.parametrize("send", [create, stream])
def test_a_round_is_a_span_and_its_members_are_its_children(
    rounds_server: FakeServer, spans: InMemorySpanExporter, kind: str, send: Any
) -> None:
    with trace.get_tracer("test").start_as_current_span("application") as outer:
        send(rounds_server, kind)
    (span,) = ours(spans, ROUND_SPAN)
    assert span.parent.span_id == outer.get_span_context().span_id
    assert span.attributes["tokendance.round_id"] == "sim:1"
    assert span.attributes["tokendance.session_id"] == "sim"
    assert span.attributes["tokendance.agents"] == ("klaus", "maria", "eve")
    assert span.attributes["tokendance.reused_tokens"] == 21
    assert span.attributes["tokendance.plain"] is False
    members = ours(spans, MEMBER_SPAN)
    assert [m.attributes["tokendance.agent_id"] for m in members] == ["klaus", "maria", "eve"]
    assert {m.attributes["tokendance.reused_tokens"] for m in members} == {7}
    assert {m.parent.span_id for m in members} == {span.context.span_id}


@both
def test_a_failed_member_is_an_error_of_its_own_span(
    rounds_server: FakeServer, spans: InMemorySpanExporter, kind: str
) -> None:
    rounds_server.failing = {"maria": 429}
    create(rounds_server, kind)
    (span,) = ours(spans, ROUND_SPAN)
    assert span.status.is_ok or span.status.is_unset
    assert span.attributes["tokendance.failed"] == ("maria",)
    status = {m.attributes["tokendance.agent_id"]: m.status for m in ours(spans, MEMBER_SPAN)}
    assert not status["maria"].is_ok
    assert "429" in status["maria"].description
    assert status["eve"].is_unset


@both
def test_a_refused_round_is_an_error(
    rounds_server: FakeServer, spans: InMemorySpanExporter, kind: str
) -> None:
    rounds_server.refuse = [503]
    with pytest.raises(APIStatusError):
        create(rounds_server, kind)
    (span,) = ours(spans, ROUND_SPAN)
    assert not span.status.is_ok
    assert span.events[0].name == "exception"


@both
def test_no_text_is_in_a_span(rounds_server: FakeServer, spans: InMemorySpanExporter, kind: str) -> None:
    create(rounds_server, kind, retry_failed=1)
    texts = [part for prompt in prompts() for message in prompt.messages for part in [message["content"]]]
    written = "".join(span.to_json() for span in spans.get_finished_spans())
    assert texts
    assert not any(text[:12] in written for text in texts)


def test_without_opentelemetry_a_round_is_sent_all_the_same(rounds_server: FakeServer) -> None:
    code = f"""
import sys
sys.modules["opentelemetry"] = None
from openai import OpenAI
from tokendance_sdk import RoundPrompt, TokenDance
owner = TokenDance(OpenAI(base_url={rounds_server.base_url!r}, api_key="k"))
agents = [RoundPrompt.assemble("ann", "ann speaks.", task="go")]
print(owner.rounds.create(model="m", round_id="r:1", agents=agents).outputs["ann"][:3])
with owner.rounds.stream(model="m", round_id="r:2", agents=agents) as stream:
    print(stream.result().outputs["ann"][:3])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "re:\nre:\n", done.stderr
