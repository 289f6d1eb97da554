"""Who belongs together, and when to go.

A round's requests are held until all announced members are here (at most `cap`), or, when nobody announced a size,
until no new member came for `quiet` seconds (and `cap` at the latest). Time is passed in, so that behaviour is
testable without waiting.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Group:
    """Requests of one round that will be planned together.

    Attributes:
        members: request id -> the client request behind it (children of `n > 1` share one).
        size: announced members; the smallest that any member named, since refused members reduce it.
        fixed: it goes `quiet` seconds after its first member, whoever else arrives.
        closed: no new member is admitted; later ones form a new group.
    """

    first: float
    last: float
    members: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    fixed: bool = False
    closed: bool = False

    def arrived(self) -> int:
        """Client requests seen so far."""
        return len(set(self.members.values()))


@dataclass(slots=True)
class Gather:
    """Groups in the making, by round key.

    Args:
        quiet: seconds without a new member that close a group of unknown size.
        cap: longest wait, in seconds, for a group of known size.
    """

    quiet: float
    cap: float
    _open: dict[Hashable, Group] = field(default_factory=dict)

    def add(
        self,
        key: Hashable,
        request_id: str,
        parent: str,
        size: int | None,
        now: float,
        fixed: bool = False,
    ) -> Group:
        """Register a member (again is a no-op) and return its group; `fixed` as in a new `Group`."""
        group = self._open.get(key)
        # Further children of a request that is here complete nothing and delay nobody.
        known = group is not None and parent in group.members.values()
        if group is None or (not known and self.is_closed(key, group, now)):
            group = self._open[key] = Group(first=now, last=now, fixed=fixed)
        if request_id not in group.members:
            group.members[request_id] = parent
            group.last = now
            if size is not None:
                group.size = size if group.size is None else min(group.size, size)
        return group

    def is_closed(self, key: Hashable, group: Group, now: float) -> bool:
        """True once the group is complete or has waited long enough; closing is final."""
        if not group.closed and now >= self.deadline(group):
            self.close(key, group)
        return group.closed

    def close(self, key: Hashable, group: Group) -> None:
        """Let a group go now."""
        group.closed = True
        if self._open.get(key) is group:
            del self._open[key]

    def deadline(self, group: Group) -> float:
        """When the group goes at the latest, if nobody else arrives."""
        if group.fixed:
            return group.first + self.quiet
        if group.size is None:
            return min(group.last + self.quiet, group.first + self.cap)
        return group.first if group.arrived() >= group.size else group.first + self.cap

    def remove(self, key: Hashable, group: Group, request_id: str) -> None:
        """A member left (abort) before its group was planned."""
        parent = group.members.pop(request_id, None)
        if parent is None:
            return
        last_of_parent = parent not in group.members.values()
        if last_of_parent and group.size is not None and group.size > 1:
            group.size -= 1
        if not group.members and self._open.get(key) is group:
            del self._open[key]
