"""LangGraph: a node that runs all its agents as one round.

class State(TypedDict):
    histories: dict[str, str]                        # agent -> private history
    outputs: Annotated[list[Output], keep_once]      # what was said, each output once
    task: str

broadcaster = RoundBroadcaster(client=OpenAI(...), model="m")
graph.add_node("round", broadcaster.node())
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.runnables import RunnableConfig, RunnableLambda
from openai import AsyncOpenAI, OpenAI
from tokendance_sdk.async_client import AsyncTokenDance
from tokendance_sdk.blocks import Block
from tokendance_sdk.client import TokenDance
from tokendance_sdk.errors import PromptError, TokenDanceError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import DEFAULT_LABEL, HistoryItem, Label, RoundPrompt
from tokendance_sdk.protocol import ID_PATTERN
from tokendance_sdk.results import RoundResult

__all__ = ["Output", "RoundBroadcaster", "RoundPlace", "Update", "keep_once"]


class Output(TypedDict):
    """One agent's output of one round, as it stands in the graph's state (JSON types only)."""

    round_id: str
    round: int
    agent: str
    text: str


Update = Callable[[Any, list[Output]], Mapping[str, Any]]
"""(state before the round, its outputs) -> further state to write; see `RoundBroadcaster.node`."""


def keep_once(known: Sequence[Output] | None, new: Sequence[Output] | None) -> list[Output]:
    """Reducer: every (round, agent) once, the later text in the earlier one's place."""
    merged = {(output["round"], output["agent"]): output for output in known or ()}
    merged.update({(output["round"], output["agent"]): output for output in new or ()})
    return list(merged.values())


@dataclass(frozen=True, slots=True)
class RoundPlace:
    """Where in a graph a round is: the same after a retry and after a resume.

    With a thread id, rounds are `thread:step`; a subgraph's have its place in the parent in between. Without one,
    the session is named after the agents and their histories, and the round after the task that runs it.
    """

    session_id: str
    round_id: str

    @classmethod
    def of(cls, config: RunnableConfig, histories: Mapping[str, Any]) -> RoundPlace:
        """From the config that LangGraph gives a node."""
        metadata = config.get("metadata", {})
        step = metadata.get("langgraph_step", 0)
        namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
        parent = namespace.rpartition("|")[0]
        thread = config.get("configurable", {}).get("thread_id")
        if thread is None:
            session = f"g.{_digest(repr(sorted(histories.items())))}"
            return cls(session, f"{session}.{_digest(namespace)}:{step}")
        session = _id(str(thread)) + (f":{_digest(parent)}" if parent else "")
        return cls(session, f"{session}:{step}")


class RoundBroadcaster:
    """Makes the agents of a graph speak in rounds.

    Args:
        client: `OpenAI` or `TokenDance`, for `invoke` and `stream`; or an async client, see `async_client`.
        model: the model of every agent.
        async_client: `AsyncOpenAI` or `AsyncTokenDance`, for `ainvoke` and `astream`.
        layout: order of the shared blocks; default canonical.
        label: text before each block.
        on_round: called with every `RoundResult`, before its outputs go into the state.
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
        self.model = model
        self.layout = layout
        self.label = label
        self.on_round = on_round
        self.defaults = defaults

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

        def prepare(state: Any, config: RunnableConfig) -> tuple[int, dict[str, Any]]:
            said: Sequence[Output] = _get(state, outputs) or ()
            number = 1 + max((output["round"] for output in said), default=-1)
            place = RoundPlace.of(config, _get(state, histories) or {})
            prompts = self._prompts(_get(state, histories), said, _get(state, task), number)
            return number, {
                **self.defaults,
                **fields,
                "model": self.model,
                "round_id": place.round_id,
                "session_id": place.session_id,
                "agents": prompts,
                "raise_on_error": on_failure == "raise",
            }

        def finish(state: Any, number: int, result: RoundResult) -> dict[str, Any]:
            if self.on_round is not None:
                self.on_round(result)
            new = [
                Output(round_id=result.round_id, round=number, agent=agent, text=text)
                for agent, text in result.outputs.items()
            ]
            return {outputs: new, **(update(state, new) if update is not None else {})}

        def run(state: Any, config: RunnableConfig) -> dict[str, Any]:
            if self.client is None:
                raise TokenDanceError(
                    "this broadcaster has an async client only; use ainvoke or give it a client"
                )
            number, arguments = prepare(state, config)
            return finish(state, number, self.client.rounds.create(**arguments))

        async def arun(state: Any, config: RunnableConfig) -> dict[str, Any]:
            if self.async_client is None:
                raise TokenDanceError(
                    "this broadcaster has a sync client only; use invoke or give it async_client"
                )
            number, arguments = prepare(state, config)
            return finish(state, number, await self.async_client.rounds.create(**arguments))

        return RunnableLambda(run, afunc=arun, name=name)

    def _prompts(
        self, histories: object, said: Sequence[Output], task: Any, number: int
    ) -> list[RoundPrompt]:
        if not isinstance(histories, Mapping) or not histories:
            raise PromptError(f"state has no agents: got histories {histories!r}; allowed: agent -> history")
        shared = [Block(o["text"], o["agent"]) for o in said if o["round"] == number - 1]
        prompts = []
        for agent, history in histories.items():
            items = [_item(item) for item in ([history] if isinstance(history, str) else history)]
            own = [o["text"] for o in said if o["agent"] == agent and o["round"] < number - 1]
            items += [Block(text, agent).private() for text in own]
            own_task = task.get(agent) if isinstance(task, Mapping) else task
            prompts.append(
                RoundPrompt.assemble(agent, items, shared, self.layout, own_task, label=self.label)
            )
        return prompts


def _get(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


def _item(item: Any) -> HistoryItem:
    """A LangChain message as an OpenAI message; everything else as it is."""
    return cast("HistoryItem", convert_to_openai_messages(item) if isinstance(item, BaseMessage) else item)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _id(text: str) -> str:
    """`text` where it is a valid id with room for what follows, otherwise its hash."""
    return text if ID_PATTERN.fullmatch(text) and len(text) <= 96 else f"t.{_digest(text)}"
