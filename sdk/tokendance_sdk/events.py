"""Events of a streamed round, and the result they add up to."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokendance_sdk.errors import ServerError
from tokendance_sdk.protocol import BODY_KEY, MemberReport
from tokendance_sdk.results import AgentError, AgentResult, RoundResult, collect, parse_completion
from tokendance_sdk.rounds_protocol import RoundRequest

INCOMPLETE = AgentError("the stream ended before this member's answer did", "incomplete")


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One piece of a streamed round.

    Attributes:
        kind: `chunk` (a piece of one agent's answer), `error` (that agent failed), `report` (the last event).
        agent_id: whose; None for the report.
        text: what a chunk adds to the agent's text; "" for other chunks.
        data: the event as the server sent it.
    """

    kind: Literal["chunk", "error", "report"]
    agent_id: str | None
    text: str
    data: dict[str, Any]

    @property
    def ends_member(self) -> bool:
        """Whether nothing of this agent follows: it failed, or this is its usage, which comes last."""
        return self.kind == "error" or bool(
            self.kind == "chunk" and self.data.get("usage") and not self.data.get("choices")
        )


class RoundAccumulator:
    """Adds events up. `feed` and `fail` change it, `result` does not; threads may share it."""

    def __init__(self, request: RoundRequest, *, plain: bool = False) -> None:
        self._request = request
        self.plain = plain
        self._started = time.perf_counter()
        self._lock = threading.Lock()
        self._index = {agent.agent_id: place for place, agent in enumerate(request.agents)}
        self._choices: dict[str, dict[int, dict[str, Any]]] = {agent: {} for agent in self._index}
        self._usage: dict[str, dict[str, Any]] = {}
        self._reports: dict[str, MemberReport] = {}
        self._errors: dict[str, AgentError] = {}

    def feed(self, name: str | None, data: Mapping[str, Any]) -> RoundEvent:
        """Take in one server-sent event.

        Raises:
            ServerError: an event of an agent that this round does not have.
        """
        with self._lock:
            return self._feed(name, data)

    def _feed(self, name: str | None, data: Mapping[str, Any]) -> RoundEvent:
        if name == "report" or "results" in data:
            for member in data.get("results") or ():
                self._note(self._known(member.get("agent_id")), member)
            return RoundEvent("report", None, "", dict(data))
        agent = self._known(data.get("agent_id"))
        self._note(agent, data)
        if data.get("error"):
            return RoundEvent("error", agent, "", dict(data))
        text = ""
        for choice in data.get("choices") or ():
            self._add(agent, choice)
            if choice.get("index", 0) == 0:
                text += (choice.get("delta") or {}).get("content") or ""
        return RoundEvent("chunk", agent, text, dict(data))

    def fail(self, agent: str, error: AgentError) -> RoundEvent:
        """Note that a member failed on this side (connection, deadline)."""
        with self._lock:
            self._errors[agent] = error
        return RoundEvent("error", agent, "", {"agent_id": agent, "error": {"message": error.message}})

    def end(self) -> RoundEvent:
        """The last event of a server that sends no report of its own."""
        return RoundEvent("report", None, "", {})

    def result(self, pending: AgentError = INCOMPLETE) -> RoundResult:
        """The round as far as it came; a member whose answer has not ended failed with `pending`."""
        wall_ms = (time.perf_counter() - self._started) * 1000
        with self._lock:
            results = [self._result(agent, place, pending) for agent, place in self._index.items()]
        return collect(self._request.round_id, results, wall_ms=wall_ms, plain=self.plain)

    def _result(self, agent: str, place: int, pending: AgentError) -> AgentResult:
        usage, report = self._usage.get(agent), self._reports.get(agent)
        error = self._errors.get(agent)
        choices = [choice for _, choice in sorted(self._choices[agent].items())]
        if error is None and (not choices or any(c["finish_reason"] is None for c in choices)):
            error = pending
        if error is not None:
            return AgentResult(agent, place, usage=usage, report=report, error=error)
        if self.plain:
            fidelity = self._request.agents[place].fidelity or self._request.fidelity
            answer = {"choices": choices, "usage": usage}
            return parse_completion(answer, agent, place, self._request.round_id, fidelity)
        return AgentResult(agent, place, tuple(choices), usage, report)

    def _known(self, agent: object) -> str:
        if not isinstance(agent, str) or agent not in self._index:
            known = ", ".join(self._index)
            raise ServerError(f"stream event of unknown agent {agent!r}; agents of this round: {known}")
        return agent

    def _note(self, agent: str, data: Mapping[str, Any]) -> None:
        if data.get("usage"):
            self._usage[agent] = dict(data["usage"])
        if data.get(BODY_KEY):
            self._reports[agent] = MemberReport.model_validate(data[BODY_KEY])
        if data.get("error"):
            self._errors[agent] = AgentError.of(data["error"])

    def _add(self, agent: str, choice: Mapping[str, Any]) -> None:
        number = int(choice.get("index", 0))
        known = self._choices[agent].setdefault(
            number,
            {"index": number, "message": {"role": "assistant", "content": None}, "finish_reason": None},
        )
        _merge(known["message"], choice.get("delta") or {})
        for name, items in (choice.get("logprobs") or {}).items():
            known.setdefault("logprobs", {}).setdefault(name, []).extend(items or ())
        for name in ("finish_reason", "stop_reason"):
            if choice.get(name) is not None:
                known[name] = choice[name]


def _merge(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta: strings grow, the role is set, tool calls are matched by their index."""
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls":
            _merge_calls(message.setdefault("tool_calls", []), value)
        elif name == "role" or not isinstance(value, str):
            message[name] = value
        else:
            message[name] = (message.get(name) or "") + value


def _merge_calls(calls: list[dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    for delta in deltas:
        place = int(delta.get("index", len(calls)))
        while len(calls) <= place:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[place]
        call["id"] = delta.get("id") or call["id"]
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
