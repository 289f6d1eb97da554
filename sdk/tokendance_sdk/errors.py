"""What the SDK raises; errors of the wrapped OpenAI client (auth, connection, bad request) pass through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

if TYPE_CHECKING:
    from tokendance_sdk.results import AgentError, RoundResult


class TokenDanceError(Exception):
    """Base of all errors of this package: what was wrong, the value, what is allowed."""


class LayoutError(TokenDanceError, ValueError):
    """An order is no permutation of the shared blocks."""


class PromptError(TokenDanceError, ValueError):
    """History, blocks or a round request have a wrong shape."""

    @classmethod
    def of(cls, error: ValidationError) -> PromptError:
        """The same findings, one line each, without pydantic's links."""
        lines = [f"{'.'.join(str(step) for step in e['loc']) or 'round'}: {e['msg']}" for e in error.errors()]
        return cls("; ".join(line.replace("Value error, ", "") for line in lines))


class TokenizerError(TokenDanceError):
    """A tokenizer cannot be had here (not installed, not cached and no network, no such file)."""


class ContextOverflowError(TokenDanceError, ValueError):
    """A prompt and its answer do not fit into the model's context.

    Attributes:
        agent: whose prompt it is.
        excess: tokens by which it is too long.
    """

    def __init__(self, agent: str, excess: int, limit: int) -> None:
        self.agent = agent
        self.excess = excess
        super().__init__(
            f"prompt of agent {agent!r} exceeds the context by {excess} tokens; "
            f"allowed: {limit} with the answer; drop or shorten history or blocks"
        )


class RoundFailedError(TokenDanceError):
    """Members failed and `raise_on_error` was set.

    Attributes:
        result: the whole round, successes included.
    """

    def __init__(self, result: RoundResult) -> None:
        self.result = result
        named = "; ".join(f"{r.agent_id}: {r.error.message}" for r in result.failed if r.error)
        count = f"{len(result.failed)} of {len(result.results)} members"
        super().__init__(f"{count} of round {result.round_id!r} failed: {named}")


class MemberFailedError(TokenDanceError):
    """One member's call failed while it was sent as part of a round.

    Attributes:
        agent_id: whose call.
        round_id: the round it was part of.
        error: what the server, or the deadline, said.
    """

    def __init__(self, agent_id: str, round_id: str, error: AgentError) -> None:
        self.agent_id = agent_id
        self.round_id = round_id
        self.error = error
        status = "" if error.status is None else f" with status {error.status}"
        super().__init__(f"agent {agent_id!r} failed in round {round_id!r}{status}: {error.message}")


class RoundStreamError(TokenDanceError):
    """A streamed round broke off, or its result was asked for before its end."""


class ServerError(TokenDanceError):
    """A server's answer is not what the protocol says."""
