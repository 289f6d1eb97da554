"""Plays a recorded workload through a server, round by round, and says what each round cost.

The shared blocks of a round are the *recorded* outputs of the one before, whatever the server generated: so
every server is given the same prompts, and their rounds can be compared.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokendance_sdk.errors import TokenDanceError
from tokendance_sdk.layout import Layout
from tokendance_sdk.protocol import DEFAULT_FIDELITY, Fidelity
from tokendance_sdk.workload import Context, Workload
from tokendance_sdk.workload_cut import Cut

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from tokendance_sdk.results import RoundResult
    from tokendance_sdk.workload_cut import Decode, Encode


class ReplayError(TokenDanceError):
    """A replay cannot start: the server offers no model, or cannot tokenize."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One played round: sums over its members (token counts; milliseconds).

    Attributes:
        wall_ms: from sending the round to having every answer.
        fallbacks: why members reused nothing, and how many each.
        outputs: agent's wire id -> generated text (the recorded one went into the next round).
        failed: agent's wire id -> why it has no answer.
    """

    index: int
    agents: int
    prompt_tokens: int
    cached_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    fresh_tokens: int
    wall_ms: float
    fallbacks: dict[str, int]
    outputs: dict[str, str]
    failed: dict[str, str]

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that went through the model."""
        return self.recomputed_tokens + self.fresh_tokens

    @classmethod
    def of(cls, index: int, result: RoundResult) -> RoundRow:
        """The row of a finished round."""
        totals = result.report.totals
        reasons = Counter(str(m.fallback_reason) for m in result.report.members if m.fallback_reason)
        return cls(
            index=index,
            agents=totals.agents,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            reused_tokens=totals.reused_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            fresh_tokens=totals.fresh_tokens,
            wall_ms=result.report.wall_ms,
            fallbacks=dict(reasons),
            outputs=dict(result.outputs),
            failed=dict(result.report.failed),
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """A whole replay, with everything needed to say it again.

    Attributes:
        plain: the server knew no rounds, so members went as ordinary chat requests.
        cut: how the workload was cut, in words.
        through: what assembled and sent the rounds.
    """

    workload: str
    cut: str
    model: str
    plain: bool
    fidelity: Fidelity
    context: Context
    layout: str
    answer_tokens: int
    forced_length: bool
    rows: tuple[RoundRow, ...]
    through: str = "the SDK"

    @classmethod
    def of(
        cls,
        workload: Workload,
        settings: Settings,
        rows: Sequence[RoundRow],
        *,
        model: str,
        plain: bool,
        through: str = "the SDK",
    ) -> Replay:
        """The replay of `workload` that gave `rows`."""
        return cls(
            workload=workload.name,
            cut=(workload.cut or Cut()).describe(),
            model=model,
            plain=plain,
            fidelity=settings.fidelity,
            context=settings.context,
            layout=settings.layout.name,
            answer_tokens=settings.answer_tokens,
            forced_length=settings.force_length,
            rows=tuple(rows),
            through=through,
        )

    @property
    def failed(self) -> int:
        """Members without an answer, over all rounds."""
        return sum(len(row.failed) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is played.

    Attributes:
        answer_tokens: most tokens of an answer; exactly so many with `force_length` (a vLLM extension).
    """

    fidelity: Fidelity = DEFAULT_FIDELITY
    context: Context = "window"
    layout: Layout = Layout.canonical()  # noqa: RUF009 (immutable)
    answer_tokens: int = 32
    force_length: bool = False

    def fields(self) -> dict[str, Any]:
        """What every round is sent with, for `rounds.create`; answers are greedy."""
        fields = {"temperature": 0.0, "max_tokens": self.answer_tokens, "fidelity": self.fidelity}
        if self.force_length:
            fields |= {"ignore_eos": True, "min_tokens": self.answer_tokens}
        return fields


def new_session(workload: Workload) -> str:
    """A session id that no earlier replay had: nothing one left in the server is the other's family."""
    return f"replay-{workload.name}-{secrets.token_hex(4)}"


async def replay(
    client: AsyncOpenAI,
    workload: Workload,
    settings: Settings | None = None,
    *,
    model: str,
    on_round: Callable[[RoundRow], None] | None = None,
) -> Replay:
    """Play `workload` through the server of `client`, one round after the other, greedily.

    Each replay is a session of its own: nothing that an earlier one left in the server is its family (vLLM's
    prefix cache is the server's, and stays).

    Args:
        model: as the server calls it; see `served_model`.
        on_round: called with each row as soon as it is there.

    Raises:
        openai.OpenAIError: a round as a whole was refused. Failures of single members are in the rows.
    """
    from tokendance_sdk.client import AsyncTokenDance

    how = settings or Settings()
    dance = AsyncTokenDance(client)
    session = new_session(workload)
    rows: list[RoundRow] = []
    plain = False
    for t in range(len(workload.rounds)):
        prompts = [
            workload.prompt(agent, t, context=how.context, layout=how.layout) for agent in workload.agents
        ]
        result = await dance.rounds.create(
            model=model, round_id=f"{session}:{t}", agents=prompts, **how.fields()
        )
        plain = result.plain
        rows.append(RoundRow.of(t, result))
        if on_round is not None:
            on_round(rows[-1])
    return Replay.of(workload, how, rows, model=model, plain=plain)


def served_model(client: OpenAI) -> tuple[str, str]:
    """The first model the server offers, and where it comes from (its folder or repository; vLLM says so).

    Raises:
        ReplayError: it offers none.
    """
    for card in client.models.list():
        return card.id, str((card.model_extra or {}).get("root") or card.id)
    raise ReplayError(f"the server at {client.base_url} offers no model; name one with --model")


def server_codec(client: OpenAI, model: str) -> tuple[Encode, Decode]:
    """Encode and decode with the server's own tokenizer (vLLM's `/tokenize` and `/detokenize`).

    The functions raise `ReplayError` when the server has no such routes.
    """
    from openai import APIStatusError

    root = str(client.base_url).rstrip("/").removesuffix("/v1")

    def ask(route: str, body: dict[str, Any], field: str) -> Any:
        try:
            answer = client.post(f"{root}/{route}", cast_to=object, body={"model": model, **body})
        except APIStatusError as error:
            raise ReplayError(
                f"{root}/{route} answered {error.status_code}: a cut by tokens needs the server's tokenizer "
                "(vLLM's /tokenize and /detokenize); leave out --history-tokens and --block-tokens"
            ) from error
        if not isinstance(answer, dict) or field not in answer:
            raise ReplayError(f"{root}/{route} answered without {field!r}: {str(answer)[:200]}")
        return answer[field]

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = ask("tokenize", {"prompt": text, "add_special_tokens": False}, "tokens")
        return ids

    def decode(ids: Sequence[int]) -> str:
        return str(ask("detokenize", {"tokens": list(ids)}, "prompt"))

    return encode, decode
