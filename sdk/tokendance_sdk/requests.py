"""From the arguments of `rounds.create` to a checked round request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tokendance_sdk.errors import PromptError
from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.rounds_protocol import RoundAgent, RoundRequest

if TYPE_CHECKING:
    from openai import RequestOptions

Agent = RoundPrompt | Mapping[str, Any]
"""An assembled prompt, or a member in wire form: `{"agent_id": ..., "messages": [...], **overrides}`."""


@dataclass(frozen=True, slots=True)
class RoundCall:
    """A round, and how to send it.

    Attributes:
        options: the OpenAI client's request options (timeout, headers, query parameters).
    """

    request: RoundRequest
    options: RequestOptions

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of `POST /v1/rounds`: what was set, nothing else."""
        return self.request.model_dump(mode="json", exclude_unset=True)

    def member_body(self, agent: RoundAgent) -> dict[str, Any]:
        """The member's chat request to a plain server."""
        return self.request.chat_body(agent, plain=True)

    def only(self, agents: Sequence[str]) -> RoundCall:
        """The same round with these members alone: same round id, same blocks."""
        chosen = [agent for agent in self.request.agents if agent.agent_id in set(agents)]
        return RoundCall(self.request.model_copy(update={"agents": chosen}), self.options)

    def streaming(self) -> RoundCall:
        """The same round, answered as a stream (with usage, unless the caller chose other stream options)."""
        wanted = {"stream": True, "stream_options": {"include_usage": True}, **self.request.defaults}
        return RoundCall(self.request.model_copy(update=wanted), self.options)


def prepare(
    model: str,
    round_id: str,
    agents: Sequence[Agent],
    overrides: Mapping[str, Mapping[str, Any]] | None,
    fields: Mapping[str, Any],
) -> RoundCall:
    """Check and complete a round before anything is sent.

    `fields` holds transport options (`timeout`, `extra_headers`, `extra_query`), `extra_body`, round fields
    (`session_id`, `blocks`, `fidelity`, `backend`, `options`) and sampling parameters. None leaves a field
    out.

    Raises:
        PromptError: what the server would refuse: bad ids, duplicate agents, unknown block references, ...
    """
    rest = {name: value for name, value in fields.items() if value is not None}
    if "stream" in rest:
        raise PromptError(
            f"got stream={rest['stream']!r}; allowed: rounds.create for whole answers, rounds.stream"
        )
    options: Any = {
        name: rest.pop(key)
        for name, key in (("timeout", "timeout"), ("headers", "extra_headers"), ("params", "extra_query"))
        if key in rest
    }
    blocks = dict(rest.pop("blocks", {}))
    members = []
    for agent in agents:
        if isinstance(agent, RoundPrompt):
            blocks.update(agent.blocks)
            agent = {"agent_id": agent.agent, "messages": agent.round_messages}
        if not isinstance(agent, Mapping):
            raise PromptError(
                f"got agent {str(agent)[:80]!r}; allowed: a RoundPrompt, or agent_id and messages"
            )
        members.append({**agent, **(overrides or {}).get(str(agent.get("agent_id")), {})})
    unknown = set(overrides or {}) - {str(member.get("agent_id")) for member in members}
    if unknown:
        known = ", ".join(str(member.get("agent_id")) for member in members)
        raise PromptError(
            f"overrides for unknown agent {sorted(unknown)[0]!r}; agents of this round: {known}"
        )
    body = {"model": model, "round_id": round_id, **rest, **rest.pop("extra_body", {})}
    body.pop("extra_body", None)
    try:
        request = RoundRequest.model_validate({**body, "blocks": blocks, "agents": members, "stream": False})
    except ValidationError as error:
        raise PromptError.of(error) from error
    return RoundCall(request, options)
