"""`RoundBroadcaster`: one object for a graph's rounds, its chat model, its node and the wrapped graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.pregel import Pregel
from openai import AsyncOpenAI, OpenAI
from tokendance_sdk.async_client import AsyncTokenDance
from tokendance_sdk.client import TokenDance
from tokendance_sdk.errors import PromptError, TokenDanceError
from tokendance_sdk.integrations.langgraph.calls import NEVER_SENT, Caller
from tokendance_sdk.integrations.langgraph.chat import RoundChatModel
from tokendance_sdk.integrations.langgraph.gather import WINDOW_S, Book
from tokendance_sdk.integrations.langgraph.memory import LEAST
from tokendance_sdk.integrations.langgraph.node import RoundNode, Update
from tokendance_sdk.integrations.langgraph.rounds import Rounds, Sending
from tokendance_sdk.integrations.langgraph.rounds_async import AsyncRounds
from tokendance_sdk.integrations.langgraph.wrap import MEMBERS, wrapped
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import DEFAULT_LABEL, Label
from tokendance_sdk.protocol import MAX_ROUND_SIZE
from tokendance_sdk.results import RoundResult

G = TypeVar("G", bound=Pregel[Any, Any, Any, Any])


class RoundBroadcaster:
    """Makes the agents of a graph speak in rounds.

    Args:
        client: `OpenAI` or `TokenDance`, for `invoke` and `stream`; or an async client, see `async_client`.
        model: the model of every agent.
        async_client: `AsyncOpenAI` or `AsyncTokenDance`, for `ainvoke` and `astream`.
        layout: order of the shared blocks in `node`; default canonical.
        label: text before each block in `node`.
        on_round: called with every `RoundResult`, before its outputs go into the state; by the chat model from
            the thread that sent the round.
        window: seconds without a new call after which the chat model sends a round.
        least: characters that an output must have for the chat model to recognise it in later prompts.
        defaults: fields for every round, as for `rounds.create` (sampling, fidelity, timeout, retry_failed, ...).
    """

    def __init__(
        self,
        *,
        client: OpenAI | AsyncOpenAI | TokenDance | AsyncTokenDance | None = None,
        model: str,
        async_client: AsyncOpenAI | AsyncTokenDance | None = None,
        layout: Layout | None = None,
        label: Label | None = DEFAULT_LABEL,
        on_round: Callable[[RoundResult], None] | None = None,
        window: float = WINDOW_S,
        least: int = LEAST,
        **defaults: Any,
    ) -> None:
        if isinstance(client, AsyncOpenAI | AsyncTokenDance):
            client, async_client = None, async_client or client
        if client is None and async_client is None:
            raise PromptError("got no client; allowed: client, async_client, or both")
        self.client = TokenDance(client) if isinstance(client, OpenAI) else client
        self.async_client = (
            AsyncTokenDance(async_client) if isinstance(async_client, AsyncOpenAI) else async_client
        )
        if self.client and self.async_client and isinstance(async_client, AsyncOpenAI):
            one_server = self.client.client.base_url == self.async_client.client.base_url
            if one_server:
                self.async_client.kind = self.client.kind  # found out once, warned of once
        self.model = model
        self.layout = layout
        self.label = label
        self.on_round = on_round
        self.defaults = defaults
        self.calls = Caller(defaults, least)
        fields = dict(defaults)
        retries, deadline = fields.pop("retry_failed", 0), fields.pop("deadline", None)
        self._sending = Sending(fields, retries, deadline, on_round, Book(window))

    @classmethod
    def from_model(cls, model: BaseChatModel, **options: Any) -> RoundBroadcaster:
        """From a `ChatOpenAI`: its clients (address, key, proxies, retries) and its sampling parameters.

        Args:
            options: as for `RoundBroadcaster`; they replace what the model says.

        Raises:
            PromptError: the model has no OpenAI clients.
        """
        sync, asynchronous = (getattr(model, name, None) for name in ("root_client", "root_async_client"))
        if not isinstance(sync, OpenAI) and not isinstance(asynchronous, AsyncOpenAI):
            raise PromptError(f"got a {type(model).__name__}; allowed: ChatOpenAI, which has OpenAI clients")
        parameters = dict(getattr(model, "_default_params", {}))
        for name in NEVER_SENT:
            parameters.pop(name, None)
        return cls(**{"client": sync, "async_client": asynchronous, **parameters, **options})

    @property
    def chat_model(self) -> RoundChatModel:
        """A LangChain chat model whose calls of one superstep become one round."""
        return RoundChatModel(model_name=self.model, owner=self)

    def wrap(self, graph: G, members: int = MEMBERS) -> G:
        """`graph` with the same interface, run so that its chat model's calls can meet; `graph` itself is unchanged.

        Args:
            members: most calls of one superstep: so many sync nodes run at once, whatever `max_concurrency` says.

        Raises:
            PromptError: it is no compiled graph, or `members` is out of range.
        """
        if not isinstance(graph, Pregel):
            raise PromptError(f"got a {type(graph).__name__}; allowed: a compiled graph (`graph.compile()`)")
        if not 1 <= members <= MAX_ROUND_SIZE:
            raise PromptError(f"got members={members}; allowed: 1 to {MAX_ROUND_SIZE}")
        return wrapped(graph, members, self.calls.sessions)

    def node(
        self,
        *,
        histories: str = "histories",
        outputs: str = "outputs",
        task: str = "task",
        on_failure: Literal["raise", "skip"] = "raise",
        update: Update | None = None,
        name: str = "round",
        **fields: Any,
    ) -> RunnableLambda[Any, dict[str, Any]]:
        """A node (sync and async) that runs one round and returns its outputs.

        Args:
            histories: state key, agent -> private history (text or messages); its order is the round's.
            outputs: state key; the last round's outputs are this round's shared blocks. With `keep_once` as
                reducer an agent's own earlier ones follow its history; without a reducer the state holds the
                last round only, and what agents remember is up to `update`.
            task: state key, one text for all or agent -> text; may be absent.
            on_failure: `raise` RoundFailedError, for LangGraph's retry policy, or `skip` members that failed.
            update: called with the state that the round saw and the round's outputs; what it returns is written
                to the state in the same step: grown histories, the next task, or, under the key `outputs`, what
                the next round shares in place of the outputs as they are.
            fields: as for `rounds.create`; they replace the broadcaster's defaults.
        """
        node = RoundNode(
            self.model,
            histories,
            outputs,
            task,
            on_failure,
            update,
            self.layout,
            self.label,
            {**self.defaults, **fields},
        )

        def finish(state: Any, number: int, result: RoundResult) -> dict[str, Any]:
            if self.on_round is not None:
                self.on_round(result)
            return node.finish(state, number, result)

        def run(state: Any, config: RunnableConfig) -> dict[str, Any]:
            dance = self._sync()
            number, arguments = node.prepare(state, config)
            return finish(state, number, dance.rounds.create(**arguments))

        async def arun(state: Any, config: RunnableConfig) -> dict[str, Any]:
            dance = self._async()
            number, arguments = node.prepare(state, config)
            return finish(state, number, await dance.rounds.create(**arguments))

        return RunnableLambda(run, afunc=arun, name=name)

    @property
    def rounds(self) -> Rounds:
        """What the chat model sends through from threads."""
        return Rounds(self._sync(), self._sending)

    @cached_property
    def async_rounds(self) -> AsyncRounds:
        """What the chat model sends through from event loops."""
        return AsyncRounds(self._async(), self._sending)

    def _sync(self) -> TokenDance:
        if self.client is None:
            raise TokenDanceError(
                "this broadcaster has an async client only; use ainvoke or give it a client"
            )
        return self.client

    def _async(self) -> AsyncTokenDance:
        if self.async_client is None:
            raise TokenDanceError(
                "this broadcaster has a sync client only; use invoke or give it async_client"
            )
        return self.async_client
