"""Holding members until their round is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.rounds.gather import Gather

_POLL_SLEEP = 0.004
"""Seconds to rest in a step that only holds members: bounds what waiting costs, delays nobody by more."""


class Gathering:
    """Who still waits, and until when the engine may rest.

    Args:
        gather: groups in the making.
        live: how many requests are in the engine, tagged or not.
        members: all members by request id; kept up to date by the caller.
    """

    def __init__(self, gather: Gather, members: Mapping[str, Member], live: Callable[[], int]) -> None:
        self._gather = gather
        self._live = live
        self._members = members
        self._held_until: float | None = None

    def add(self, member: Member) -> None:
        """Put a new member into its group; those that reuse nothing count as arrived too, so nobody waits for them."""
        tag = member.tag
        siblings = [m for m in self._members.values() if m.tag.parent == tag.parent and m is not member]
        # The round of a child that comes after it was planned is over: waiting for its size would be in vain.
        late = any(m.group is None for m in siblings)
        size = None if late else tag.round_size
        member.group = self._gather.add(
            member.key, member.request.request_id, tag.parent, size, member.arrived, fixed=tag.automatic
        )

    def remove(self, member: Member) -> None:
        """A member ended; a no-op once its group was complete."""
        if member.group is not None:
            self._gather.remove(member.key, member.group, member.request.request_id)

    def complete(self, member: Member) -> list[Member] | None:
        """The members of a group that goes now, each told its size; None while this member must wait."""
        group = member.group
        assert group is not None
        now = time.monotonic()
        if member.tag.automatic and not group.closed and self._nobody_else(member):
            self._gather.close(member.key, group)
        if not self._gather.is_closed(member.key, group, now):
            self.hold(self._gather.deadline(group))
            return None
        members = [self._members[r] for r in group.members if r in self._members]
        size = len({m.tag.parent for m in members})
        for m in members:
            m.group_size, m.gathered_ms, m.group = size, (now - m.arrived) * 1e3, None
        return members

    def _nobody_else(self, member: Member) -> bool:
        """Whether one client request is all there is in the engine."""
        own = sum(m.tag.parent == member.tag.parent for m in self._members.values())
        return self._live() == own

    def hold(self, until: float | None = None) -> None:
        """Somebody was held in this step and must be asked again by then (now)."""
        until = time.monotonic() if until is None else until
        self._held_until = until if self._held_until is None else min(self._held_until, until)

    def rest(self, idle: bool) -> None:
        """The step is over; if it was idle and members are held, sleep a little instead of spinning."""
        if idle and self._held_until is not None:
            time.sleep(min(_POLL_SLEEP, max(0.0, self._held_until - time.monotonic())))
        self._held_until = None
