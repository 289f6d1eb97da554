"""What a `BroadcastGroupChat`, its manager and its participants share: whose turn it is in which round."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams._group_chat._events import SerializableException
from pydantic import BaseModel
from tokendance_sdk.gathering import OpenRound
from tokendance_sdk.series import RoundSeries


class ParticipantFailed(BaseModel):
    """A participant has no answer in this round."""

    name: str
    error: SerializableException


class Floor:
    """What the team, its manager and its participants share.

    Attributes:
        names: the participants, in the order in which they are heard.
    """

    def __init__(self, series: RoundSeries, names: list[str], on_failure: Literal["raise", "skip"]) -> None:
        self.series = series
        self.names = names
        self.skips = on_failure == "skip"
        self._opened: OpenRound | None = None
        self._answers: frozenset[str] = frozenset()
        self._error: Exception | None = None

    def open(self, names: list[str], answers: Collection[str]) -> None:
        """A round begins with these participants; or goes on, and has `answers` (message ids) already."""
        self._error = None
        self._answers = frozenset(answers)
        self._opened = self.series.open(names)

    def seat(self, name: str) -> AbstractContextManager[None]:
        """For the time that a participant is asked."""
        return nullcontext() if self._opened is None else self._opened.seat(name)

    def failed(self, error: Exception) -> None:
        """Note the first failure of a round."""
        self._error = self._error or error

    def take_error(self) -> Exception | None:
        """The first failure of the last round; once."""
        error, self._error = self._error, None
        return error

    def is_answer(self, message: BaseChatMessage) -> bool:
        """Whether it was said in the round that goes on, so that nobody hears it before the next."""
        return message.id in self._answers

    def in_order(self, messages: Sequence[BaseChatMessage]) -> list[BaseChatMessage]:
        """Each run of participants' messages in the participants' order; what others said stays where it is."""
        place = {name: index for index, name in enumerate(self.names)}
        ordered: list[BaseChatMessage] = []
        for ours, run in itertools.groupby(messages, key=lambda message: message.source in place):
            said = list(run)
            ordered += sorted(said, key=lambda message: place[message.source]) if ours else said
        return ordered
