"""What the two halves of the connector tell each other about stored histories (mirrors)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokendance_engine.reuse.ports import PageTable
from tokendance_engine.segments.key import Tokens
from tokendance_engine.storage.handover import Taken
from tokendance_engine.storage.positions import Positions

FILLER = -1
"""Stands for fillers in the token ids of a mirror, so that a restarted engine sees where they are."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose history: the tenant's cache salt, the session and the agent."""

    salt: str
    session: str
    agent: str


@dataclass(frozen=True, slots=True)
class FindJob:
    """What does the store hold of this member?"""

    request_id: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class Held:
    """What the store holds of a member.

    Attributes:
        tokens: ids of the tokens whose KV it is, `FILLER` where a filler stands, int32 [n].
        positions: where they stand.
        approximate_from: first of them whose KV is approximate, or None.
        master: the session's master, if all its rows are in memory: the engine's id of it, and rows.
    """

    tokens: Tokens
    positions: Positions
    approximate_from: int | None
    master: tuple[int, int] | None = None

    @staticmethod
    def by_all(answers: Sequence[Held | None]) -> Held | None:
        """What all workers hold: the shortest of their answers."""
        held = [each for each in answers if each is not None]
        return min(held, key=lambda each: len(each.tokens)) if len(held) == len(answers) else None


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Write tokens [start, end) of a member's mirror into its pages (the table of tokens from 0 on)."""

    request_id: str
    owner: Owner
    pages: PageTable
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MasterRestore:
    """Write all rows of a session's master into its pages."""

    owner: Owner
    master: int
    pages: PageTable
    rows: int


@dataclass(frozen=True, slots=True)
class MasterCapture:
    """Keep a master's rows; `owner.agent` does not matter.

    Attributes:
        master: the engine's id of the computation.
        tokens: ids of the rows that are computed, int32 [n].
        pages: its page table.
        positions: where the rows stand.
    """

    owner: Owner
    master: int
    tokens: Tokens
    pages: PageTable
    positions: Positions


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """Keep a member's KV; its pages are held until the worker has answered.

    Attributes:
        tokens, positions: as in `Held`.
        pages: its page table.
        taken: what its plan took from a master and did not compute again.
        same: leading tokens whose KV is what the store holds already.
        approximate_from: first token in pages that are keyed apart, or None.
        common: leading tokens that all members of its session start with, at positions from 0 on.
    """

    request_id: str
    owner: Owner
    tokens: Tokens
    pages: PageTable
    positions: Positions
    taken: Taken
    same: int
    approximate_from: int | None
    common: int = 0


@dataclass(slots=True)
class MirrorWork:
    """Scheduler to worker, one step's work, in this order: captures, restores (masters first), questions.

    Masters are captured after the work of the step that may compute them.

    Attributes:
        ended: members that were asked about and have ended.
        reset: first forget every session.
    """

    masters: list[MasterCapture] = field(default_factory=list)
    captures: list[CaptureJob] = field(default_factory=list)
    revived: list[MasterRestore] = field(default_factory=list)
    restores: list[RestoreJob] = field(default_factory=list)
    finds: list[FindJob] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    reset: bool = False

    def is_empty(self) -> bool:
        """No work at all."""
        jobs = self.masters or self.captures or self.revived or self.restores or self.finds or self.ended
        return not (jobs or self.reset)


@dataclass(slots=True)
class MirrorReport:
    """Worker to scheduler.

    Attributes:
        held: request id -> what each worker that has looked holds of the member (a tier may answer in a later step).
        restored: request id -> milliseconds, of members whose history is in their pages again.
        lost: members whose history is not.
        captured: members whose pages may go.
        broken: masters that did not come back.
        released: (salt, session) of sessions that a client has released.
    """

    held: dict[str, tuple[Held | None, ...]] = field(default_factory=dict)
    restored: dict[str, float] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    captured: list[str] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    released: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def refusing(cls, work: MirrorWork) -> MirrorReport:
        """The answer of a worker that stores nothing."""
        return cls(
            held={job.request_id: (None,) for job in work.finds},
            lost=[job.request_id for job in work.restores],
            captured=[job.request_id for job in work.captures],
            broken=[job.master for job in work.revived],
        )

    def is_empty(self) -> bool:
        """Nothing to say."""
        return not (self.held or self.restored or self.lost or self.captured or self.broken or self.released)

    def aggregate(self, other: MirrorReport) -> MirrorReport:
        """Merge the reports of two workers: done is what both did."""
        names = dict.fromkeys([*self.held, *other.held])
        held = {name: (*self.held.get(name, ()), *other.held.get(name, ())) for name in names}
        both = self.restored.keys() & other.restored.keys()
        return MirrorReport(
            held,
            {name: max(self.restored[name], other.restored[name]) for name in both},
            sorted({*self.lost, *other.lost, *(self.restored.keys() ^ other.restored.keys())}),
            sorted({*self.captured, *other.captured}),
            sorted({*self.broken, *other.broken}),
            sorted({*self.released, *other.released}),
        )
