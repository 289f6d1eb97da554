"""What a round gives back: one result per agent, in request order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import RoundFailedError, ServerError
from tokendance_sdk.protocol import Fidelity, MemberReport
from tokendance_sdk.report import RoundReport
from tokendance_sdk.rounds_response import RoundMemberResult, RoundResponse, RoundTotals


@dataclass(frozen=True, slots=True)
class AgentError:
    """Why one member has no answer (OpenAI's error fields, and the HTTP status where there was one)."""

    message: str
    type: str | None = None
    code: str | int | None = None
    status: int | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later: not the client's fault, as far as the status tells."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> AgentError:
        """From an OpenAI error object."""
        code = error.get("code")
        return cls(
            str(error.get("message", error)), error.get("type"), code, code if isinstance(code, int) else None
        )


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An HTTP answer as it came.

    Attributes:
        headers: names in lower case.
        body: its JSON, unknown fields included (text where it is no JSON).
    """

    status: int
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class AgentResult:
    """One agent's answer, or its error.

    Attributes:
        choices: as in a chat completion; empty for a failed member.
        report: what was reused, None where the server does not say.
    """

    agent_id: str
    index: int
    choices: tuple[dict[str, Any], ...] = ()
    usage: dict[str, Any] | None = None
    report: MemberReport | None = None
    error: AgentError | None = None

    @property
    def ok(self) -> bool:
        """True when there is an answer."""
        return self.error is None

    @property
    def message(self) -> dict[str, Any]:
        """The first choice's message (content, tool calls, ...); empty for a failed member."""
        message = self.choices[0].get("message") if self.choices else None
        return dict(message or {})

    @property
    def text(self) -> str:
        """The first choice's text; "" when there is none (a failure, or tool calls alone)."""
        return self.message.get("content") or ""

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].get("finish_reason") if self.choices else None

    @property
    def block(self) -> Block:
        """The text as a block for the next round, its author as owner."""
        return Block(self.text, self.agent_id)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A finished round.

    Attributes:
        plain: True when the server knows nothing of rounds and the members went as chat requests.
        raw: the HTTP answers it was read from: one for a round and for each time members were sent again, one for each
            member from a plain server. Empty where it was streamed (also for a deadline or progress): there
            `RoundEvent.data` is raw.
    """

    round_id: str
    results: tuple[AgentResult, ...]
    usage: dict[str, Any]
    report: RoundReport
    plain: bool = False
    raw: tuple[RawAnswer, ...] = field(default=(), compare=False, repr=False)

    def __iter__(self) -> Iterator[AgentResult]:
        return iter(self.results)

    def __getitem__(self, agent: str) -> AgentResult:
        for result in self.results:
            if result.agent_id == agent:
                return result
        known = ", ".join(result.agent_id for result in self.results)
        raise KeyError(f"no agent {agent!r} in round {self.round_id!r}; agents: {known}")

    @property
    def outputs(self) -> dict[str, str]:
        """Agent -> text, for every member that answered."""
        return {result.agent_id: result.text for result in self.results if result.ok}

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The outputs as shared blocks for the next round, in request order."""
        return tuple(result.block for result in self.results if result.ok)

    @property
    def failed(self) -> tuple[AgentResult, ...]:
        """The members without an answer."""
        return tuple(result for result in self.results if not result.ok)

    @property
    def retryable(self) -> list[str]:
        """The failed members for whom the same request may succeed later."""
        return [result.agent_id for result in self.failed if result.error and result.error.retryable]

    def raise_for_errors(self) -> RoundResult:
        """This result; `RoundFailedError` if any member failed."""
        if self.failed:
            raise RoundFailedError(self)
        return self


def collect(
    round_id: str,
    results: Iterable[AgentResult],
    *,
    wall_ms: float,
    plain: bool = False,
    raw: Iterable[RawAnswer] = (),
) -> RoundResult:
    """Members' results as a round: usage summed, reports gathered."""
    ordered = tuple(sorted(results, key=lambda result: result.index))
    members = [result.report for result in ordered if result.report is not None]
    failed = {result.agent_id: result.error.message for result in ordered if result.error is not None}
    totals = RoundTotals.of(round_id, members, agents=len(ordered), failed=len(failed))
    report = RoundReport(totals, tuple(members), failed, wall_ms, plain)
    usage = {
        name: sum(int((result.usage or {}).get(name) or 0) for result in ordered)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    return RoundResult(round_id, ordered, usage, report, plain, tuple(raw))


def replaced(result: RoundResult, later: RoundResult) -> RoundResult:
    """`result` with the members that `later` sent again."""
    again = {member.agent_id: member for member in later}
    members = (
        replace(again[member.agent_id], index=member.index) if member.agent_id in again else member
        for member in result
    )
    wall_ms = result.report.wall_ms + later.report.wall_ms
    raw = (*result.raw, *later.raw)
    return collect(result.round_id, members, wall_ms=wall_ms, plain=later.plain, raw=raw)


def past_deadline() -> AgentError:
    """The error of a straggler."""
    return AgentError("no answer before the round's deadline", "deadline", "deadline")


def parse_response(raw: RawAnswer, round_id: str, *, wall_ms: float) -> RoundResult:
    """The JSON of `/v1/rounds` as a result.

    Raises:
        ServerError: it is not what the protocol says.
    """
    try:
        response = RoundResponse.model_validate(raw.body)
    except ValidationError as error:
        raise ServerError(
            f"answer to round {round_id!r} is not a round: {str(raw.body)[:200]!r}; {error}"
        ) from error
    results = map(parse_member, response.results)
    return collect(response.round_id, results, wall_ms=wall_ms, raw=(raw,))


def parse_member(member: RoundMemberResult) -> AgentResult:
    """One entry of `results`."""
    error = AgentError.of(member.error) if member.error is not None else None
    if error is None and not member.choices:
        error = AgentError("the server sent neither choices nor an error", "server_error")
    choices = tuple(member.choices or ()) if error is None else ()
    return AgentResult(member.agent_id, member.index, choices, member.usage, member.tokendance, error)


def parse_completion(
    answer: Mapping[str, Any], agent_id: str, index: int, round_id: str, fidelity: Fidelity
) -> AgentResult:
    """An ordinary chat completion as a member's result, with a report made from its usage."""
    usage = dict(answer.get("usage") or {})
    prompt = int(usage.get("prompt_tokens") or 0)
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    report = MemberReport(
        round_id=round_id,
        agent_id=agent_id,
        fidelity=fidelity,
        prompt_tokens=prompt,
        cached_tokens=cached,
        fresh_tokens=prompt - cached,
    )
    choices = tuple(answer.get("choices") or ())
    if not choices:
        return AgentResult(agent_id, index, error=AgentError("the server sent no choices", "server_error"))
    return AgentResult(agent_id, index, choices, usage, report)
