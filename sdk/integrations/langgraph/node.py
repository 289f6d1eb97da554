"""A ready node that runs all its agents as one round, and the reducer that keeps each output once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.runnables import RunnableConfig
from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import PromptError
from tokendance_sdk.integrations.langgraph.places import RoundPlace
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import HistoryItem, Label, RoundPrompt
from tokendance_sdk.results import RoundResult


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
class RoundNode:
    """From state to a round's arguments, and from its result to a state update.

    Attributes:
        histories, outputs, task: state keys.
        fields: for every round, as for `rounds.create`.
    """

    model: str
    histories: str
    outputs: str
    task: str
    on_failure: Literal["raise", "skip"]
    update: Update | None
    layout: Layout | None
    label: Label | None
    fields: Mapping[str, Any]

    def prepare(self, state: Any, config: RunnableConfig) -> tuple[int, dict[str, Any]]:
        """The round's number in the state, and the arguments of `rounds.create`."""
        said: Sequence[Output] = _get(state, self.outputs) or ()
        number = 1 + max((output["round"] for output in said), default=-1)
        place = RoundPlace.of(config, _get(state, self.histories) or {})
        prompts = self._prompts(_get(state, self.histories), said, _get(state, self.task), number)
        return number, {
            **self.fields,
            "model": self.model,
            "round_id": place.round_id,
            "session_id": place.session_id,
            "agents": prompts,
            "raise_on_error": self.on_failure == "raise",
        }

    def finish(self, state: Any, number: int, result: RoundResult) -> dict[str, Any]:
        """What the round writes to the state."""
        new = [
            Output(round_id=result.round_id, round=number, agent=agent, text=text)
            for agent, text in result.outputs.items()
        ]
        return {self.outputs: new, **(self.update(state, new) if self.update is not None else {})}

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
