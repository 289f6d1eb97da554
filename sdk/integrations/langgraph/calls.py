"""From a chat model's messages to a member of the round that its node is in."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import ValidationError
from tokendance_sdk.errors import PromptError
from tokendance_sdk.integrations.langgraph.gather import Call
from tokendance_sdk.integrations.langgraph.memory import LEAST, MARKED, Sessions
from tokendance_sdk.integrations.langgraph.messages import wire_messages
from tokendance_sdk.integrations.langgraph.places import CallPlace
from tokendance_sdk.rounds_protocol import RoundAgent

NEVER_SENT = ("stream", "stream_usage", "stream_options")
_FOR_ALL = ("timeout", "extra_headers", "extra_query", "deadline", "retry_failed")


class Caller:
    """Makes calls, and remembers what was said, for one broadcaster.

    Attributes:
        defaults: fields of every round.
        home: session of calls that have neither a thread nor a wrapped graph.
    """

    def __init__(self, defaults: Mapping[str, Any], least: int = LEAST) -> None:
        self.defaults = defaults
        self.sessions = Sessions(least)
        self.home = f"g.{uuid.uuid4().hex[:12]}"
        self._fidelity = {**(defaults.get("extra_body") or {}), **defaults}.get("fidelity")
        self._alone = itertools.count()

    def call(
        self,
        model: str,
        messages: Sequence[BaseMessage],
        fields: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        streamed: bool,
    ) -> Call:
        """A call of the chat model from the node that runs now, known texts in its messages marked as blocks.

        With fidelity `exact` nothing is marked: a boundary may change how the text around it is tokenized, and the
        prompt is to be the one that the graph would send without TokenDance.

        Args:
            fields: the call's own sampling fields, `fidelity`, `agent_id`, ...
            metadata: as for `CallPlace.here`.

        Raises:
            PromptError: a field that a member of a round cannot have.
        """
        given = {name: value for name, value in fields.items() if name not in NEVER_SENT}
        given |= given.pop("extra_body", None) or {}
        if "max_tokens" in given and "max_completion_tokens" in self.defaults:
            given["max_completion_tokens"] = given.pop("max_tokens")  # servers let the newer name win
        wrong = [name for name in _FOR_ALL if name in given]
        if wrong:
            raise PromptError(f"got {wrong[0]!r} for a single call; allowed: set it for the broadcaster")
        place = CallPlace.here(self.home, metadata)
        if place is None:
            place = CallPlace((), self.home, f"{self.home}:{next(self._alone)}", "agent")
        exact = given.get("fidelity", self._fidelity) == "exact"
        known = () if exact else (self.sessions.of(place.session_id), MARKED)
        wire, blocks = wire_messages(messages, known)
        member = {**given, "messages": wire}
        try:
            RoundAgent.model_validate({"agent_id": place.agent, **member})
        except ValidationError as error:
            raise PromptError.of(error) from error
        return Call(place, model, member, blocks, streamed)

    def remember(self, session_id: str, text: str) -> None:
        """What was said: recognised from now on in the prompts of this session."""
        self.sessions.of(session_id).add(text)
