"""Inside a `BroadcastGroupChat`: how a participant is asked, and when a round is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.base import Response, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.state import BaseGroupChatManagerState
from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._chat_agent_container import ChatAgentContainer
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatRequestPublish,
    GroupChatTeamResponse,
    SerializableException,
)
from autogen_core import DefaultTopicId, MessageContext, event, trace_invoke_agent_span
from pydantic import Field
from tokendance_sdk.integrations.autogen.floor import Floor, ParticipantFailed


class BroadcastContainer(ChatAgentContainer):
    """A participant. Its failure is told to the manager, which ends the round when everybody is done."""

    def __init__(
        self,
        parent_topic_type: str,
        output_topic_type: str,
        agent: Any,
        message_factory: Any,
        floor: Floor,
        manager_topic_type: str,
    ) -> None:
        super().__init__(parent_topic_type, output_topic_type, agent, message_factory)
        self._floor = floor
        self._manager_topic_type = manager_topic_type

    @event
    async def handle_request(  # type: ignore[override,unused-ignore]
        self, message: GroupChatRequestPublish, ctx: MessageContext
    ) -> None:
        """Ask the participant with what it has heard, and publish its answer."""
        name = self._agent.name
        later = [m for m in self._message_buffer if self._floor.is_answer(m)]
        heard = self._floor.in_order([m for m in self._message_buffer if not self._floor.is_answer(m)])
        answer: GroupChatAgentResponse | GroupChatTeamResponse | ParticipantFailed
        topic = self._parent_topic_type
        try:
            with self._floor.seat(name):
                answer = await self._ask(heard, ctx)
        except Exception as error:
            self._floor.failed(error)
            answer = ParticipantFailed(name=name, error=SerializableException.from_exception(error))
            topic = self._manager_topic_type
        finally:
            # Taken in by the participant, even where its model call failed: it must not hear it twice.
            self._message_buffer[:] = later
        await self.publish_message(
            answer, topic_id=DefaultTopicId(type=topic), cancellation_token=ctx.cancellation_token
        )

    async def _ask(
        self, heard: list[BaseChatMessage], ctx: MessageContext
    ) -> GroupChatAgentResponse | GroupChatTeamResponse:
        agent = self._agent
        token = ctx.cancellation_token
        if isinstance(agent, Team):
            async for item in agent.run_stream(
                task=heard or None, cancellation_token=token, output_task_messages=False
            ):
                if isinstance(item, TaskResult):
                    return GroupChatTeamResponse(result=item, name=agent.name)
                await self._log_message(item)
        else:
            response: Response | None = None
            with trace_invoke_agent_span(
                agent_name=agent.name, agent_description=agent.description, agent_id=str(self.id)
            ):
                async for piece in agent.on_messages_stream(heard, token):
                    if isinstance(piece, Response):
                        response = piece
                    await self._log_message(piece.chat_message if isinstance(piece, Response) else piece)
            if response is not None:
                return GroupChatAgentResponse(response=response, name=agent.name)
        raise RuntimeError(
            f"participant {agent.name!r} ended without a response; allowed: one as its last item"
        )


class BroadcastManagerState(BaseGroupChatManagerState):
    """What a broadcast's manager keeps.

    Attributes:
        answered: participant -> messages, of a round that has not ended (after a failure).
        series: session, round number and what was shared.
    """

    answered: dict[str, list[Mapping[str, Any]]] = Field(default_factory=dict)
    series: dict[str, Any] = Field(default_factory=dict)
    type: str = Field(default="BroadcastManagerState")


class BroadcastManager(BaseGroupChatManager):
    """Asks everybody, waits for all, then ends the round."""

    _sequential_message_types: Sequence[type[Any]]

    def __init__(self, *arguments: Any, floor: Floor) -> None:
        super().__init__(*arguments)
        self._sequential_message_types = [*self._sequential_message_types, ParticipantFailed]
        self._floor = floor
        self._answered: dict[str, list[BaseAgentEvent | BaseChatMessage]] = {}
        self._failures: dict[str, SerializableException] = {}

    async def validate_group_state(self, messages: list[BaseChatMessage] | None) -> None:
        """A run that was cancelled left its speakers behind."""
        self._active_speakers.clear()
        self._failures.clear()

    async def select_speaker(self, thread: Sequence[BaseAgentEvent | BaseChatMessage]) -> list[str]:
        """All participants; after a failure, those that have not answered in this round."""
        names = [name for name in self._floor.names if name not in self._answered]
        self._floor.open(names, [message.id for said in self._answered.values() for message in said])
        return names

    @event
    async def handle_agent_response(  # type: ignore[override,unused-ignore]
        self, message: GroupChatAgentResponse | GroupChatTeamResponse, ctx: MessageContext
    ) -> None:
        """Take an answer in; the last one ends the round."""
        if isinstance(message, GroupChatAgentResponse):
            response = message.response
            said = [*(response.inner_messages or ()), response.chat_message]
        else:
            said = list(message.result.messages)
        self._answered[message.name] = said
        await self._ended(message.name, ctx)

    @event
    async def handle_failure(self, message: ParticipantFailed, ctx: MessageContext) -> None:
        """Note a failure; the last one to be done ends the round."""
        self._failures[message.name] = message.error
        await self._ended(message.name, ctx)

    async def _ended(self, name: str, ctx: MessageContext) -> None:
        if name in self._active_speakers:
            self._active_speakers.remove(name)
        if self._active_speakers:
            return
        try:
            await self._end_round(ctx)
        except Exception as error:
            await self._signal_termination_with_error(SerializableException.from_exception(error))
            raise

    async def _end_round(self, ctx: MessageContext) -> None:
        failures, self._failures = self._failures, {}
        if failures and (not self._floor.skips or not self._answered):
            first = next(name for name in self._floor.names if name in failures)
            await self._signal_termination_with_error(failures[first])
            return
        delta = [message for name in self._floor.names for message in self._answered.get(name, ())]
        self._answered.clear()
        self._floor.series.advance()
        await self.update_message_thread(delta)
        if not await self._apply_termination_condition(delta, increment_turn_count=True):
            await self._transition_to_next_speakers(ctx.cancellation_token)

    async def reset(self) -> None:
        """Start anew; round ids go on, so that none is used twice."""
        self._current_turn = 0
        self._message_thread.clear()
        self._answered.clear()
        self._active_speakers.clear()
        if self._termination_condition is not None:
            await self._termination_condition.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """JSON types only."""
        state: dict[str, Any] = BroadcastManagerState(
            message_thread=[message.dump() for message in self._message_thread],
            current_turn=self._current_turn,
            answered={name: [m.dump() for m in said] for name, said in self._answered.items()},
            series=self._floor.series.state(),
        ).model_dump()
        return state

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved, under the same session."""
        saved = BroadcastManagerState.model_validate(state)
        create = self._message_factory.create
        self._message_thread = [create(message) for message in saved.message_thread]
        self._current_turn = saved.current_turn
        self._answered = {name: [create(m) for m in said] for name, said in saved.answered.items()}
        self._floor.series.load(saved.series)
