"""An AutoGen team in which everybody answers at once, then hears all the others: each time one round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

from autogen_agentchat.base import ChatAgent, TaskResult, Team, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, MessageFactory
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentRuntime, CancellationToken, Component, ComponentModel
from pydantic import BaseModel, Field
from tokendance_sdk.integrations.autogen.floor import Floor
from tokendance_sdk.integrations.autogen.members import BroadcastContainer, BroadcastManager
from tokendance_sdk.progress import Progress
from tokendance_sdk.results import RoundResult
from tokendance_sdk.series import RoundSeries

MANAGER = "BroadcastGroupChatManager"


class BroadcastGroupChatConfig(BaseModel):
    """A team as AutoGen stores it (`dump_component`); see `BroadcastGroupChat` for the fields."""

    name: str | None = None
    description: str | None = None
    participants: list[ComponentModel]
    termination_condition: ComponentModel | None = None
    max_turns: int | None = None
    emit_team_events: bool = False
    session_id: str | None = None
    on_failure: Literal["raise", "skip"] = "raise"
    patience: float | None = 1.0
    retry_failed: int = 0
    deadline: float | None = None
    fields: dict[str, Any] = Field(default_factory=dict)


class BroadcastGroupChat(BaseGroupChat, Component[BroadcastGroupChatConfig]):  # type: ignore[misc,unused-ignore]
    """A group chat that goes in rounds: all participants answer in parallel, and in the next round hear each other.

    The participants' model calls of a round go out as one request, if their clients are
    `TokenDanceChatCompletionClient`s; others are called as ever. Answers are put into the thread, given to the
    termination condition and heard in the order of `participants`, whoever was first.

    Args:
        participants: agents, or teams (whose first model call joins the round).
        termination_condition: asked once a round, with all its messages.
        max_turns: rounds.
        session_id: names the conversation on the server; default: a new one. It is part of the saved state.
        on_failure: `raise`: when a participant fails, the run ends with a RuntimeError whose cause is the participant's
            exception, and the next `run()` asks only those who have not answered. `skip`: it says nothing this round.
        patience, retry_failed, deadline, on_round, progress: as for `RoundSeries`.
        fields: further fields of every round (`fidelity`, `backend`, `options`).

    Everything else is AutoGen's: `run`, `run_stream` (with chunks of agents that stream), cancellation tokens, `reset`,
    `save_state` and `load_state`.
    """

    component_config_schema = BroadcastGroupChatConfig
    component_provider_override = "tokendance_sdk.integrations.autogen.BroadcastGroupChat"

    def __init__(
        self,
        participants: list[ChatAgent | Team],
        *,
        name: str | None = None,
        description: str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_turns: int | None = None,
        runtime: AgentRuntime | None = None,
        custom_message_types: list[type[BaseAgentEvent | BaseChatMessage]] | None = None,
        emit_team_events: bool = False,
        session_id: str | None = None,
        on_failure: Literal["raise", "skip"] = "raise",
        patience: float | None = 1.0,
        retry_failed: int = 0,
        deadline: float | None = None,
        on_round: Callable[[RoundResult], None] | None = None,
        progress: Progress | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            name=name or "BroadcastGroupChat",
            description=description or "A team whose members all answer at once.",
            participants=participants,
            group_chat_manager_name=MANAGER,
            group_chat_manager_class=BroadcastManager,
            termination_condition=termination_condition,
            max_turns=max_turns,
            runtime=runtime,
            custom_message_types=custom_message_types,
            emit_team_events=emit_team_events,
        )
        self._settings = {
            "session_id": session_id,
            "on_failure": on_failure,
            "patience": patience,
            "retry_failed": retry_failed,
            "deadline": deadline,
            "fields": fields,
        }
        series = RoundSeries(
            session_id,
            patience=patience,
            on_round=on_round,
            retry_failed=retry_failed,
            deadline=deadline,
            progress=progress,
            **fields,
        )
        self._floor = Floor(series, [participant.name for participant in participants], on_failure)

    @property
    def session_id(self) -> str:
        """Names the conversation on the server."""
        return self._floor.series.session_id

    async def run_stream(
        self,
        *,
        task: str | BaseChatMessage | Sequence[BaseChatMessage] | None = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | TaskResult, None]:
        """As every AutoGen team's; a failure's RuntimeError has the participant's exception as its cause."""
        try:
            async for item in super().run_stream(
                task=task, cancellation_token=cancellation_token, output_task_messages=output_task_messages
            ):
                yield item
        except RuntimeError as error:
            cause = self._floor.take_error()
            if cause is None:
                raise
            raise error from cause

    def _create_participant_factory(
        self,
        parent_topic_type: str,
        output_topic_type: str,
        agent: ChatAgent | Team,
        message_factory: MessageFactory,
    ) -> Callable[[], BroadcastContainer]:
        def make() -> BroadcastContainer:
            return BroadcastContainer(
                parent_topic_type,
                output_topic_type,
                agent,
                message_factory,
                self._floor,
                self._group_chat_manager_topic_type,
            )

        return make

    def _create_group_chat_manager_factory(
        self,
        name: str,
        group_topic_type: str,
        output_topic_type: str,
        participant_topic_types: list[str],
        participant_names: list[str],
        participant_descriptions: list[str],
        output_message_queue: asyncio.Queue[Any],
        termination_condition: TerminationCondition | None,
        max_turns: int | None,
        message_factory: MessageFactory,
    ) -> Callable[[], BroadcastManager]:
        def make() -> BroadcastManager:
            return BroadcastManager(
                name,
                group_topic_type,
                output_topic_type,
                participant_topic_types,
                participant_names,
                participant_descriptions,
                output_message_queue,
                termination_condition,
                max_turns,
                message_factory,
                self._emit_team_events,
                floor=self._floor,
            )

        return make

    def _to_config(self) -> BroadcastGroupChatConfig:
        condition = self._termination_condition
        return BroadcastGroupChatConfig(
            name=self._name,
            description=self._description,
            participants=[participant.dump_component() for participant in self._participants],
            termination_condition=None if condition is None else condition.dump_component(),
            max_turns=self._max_turns,
            emit_team_events=self._emit_team_events,
            **self._settings,
        )

    @classmethod
    def _from_config(cls, config: BroadcastGroupChatConfig) -> BroadcastGroupChat:
        kinds = {Team.component_type: Team}
        participants = [
            kinds.get(each.component_type or "", ChatAgent).load_component(each)
            for each in config.participants
        ]
        condition = config.termination_condition
        rest = config.model_dump(exclude={"participants", "termination_condition", "fields"})
        return cls(
            participants,
            termination_condition=None
            if condition is None
            else TerminationCondition.load_component(condition),
            **rest,
            **config.fields,
        )
