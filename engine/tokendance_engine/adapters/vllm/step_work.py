"""What the worker is to do in the step that is being scheduled, within one budget of computed tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import StepMeta
from tokendance_engine.reuse.fillers import runs_with_fillers
from tokendance_engine.reuse.plan import Plan
from tokendance_engine.reuse.ports import Ask, MemberJob

_PATIENCE = 64
"""Steps after which work that no worker answered for counts as failed."""


@dataclass(slots=True)
class StepWork:
    """Masters and members of one step; emptied at its end.

    Args:
        families: where masters are unpinned.
        limit: most tokens to compute in a step; its first member may exceed it.
    """

    families: Families
    limit: int
    meta: StepMeta = field(default_factory=StepMeta)
    read: list[Master] = field(default_factory=list)
    _spent: int = 0
    _serial: bool = False
    _pending: dict[str, int] = field(default_factory=dict)

    def compute_master(self, master: Master) -> bool:
        """Hand out what a master still lacks; False while it does not all fit into this step."""
        room = self.limit - self._spent
        if master.pending and room > 0:
            job = master.next_job(room)
            self.meta.masters.append(job)
            self._spent += job.tokens
        return not master.pending

    def fits(self, member: Member, plan: Plan) -> bool:
        """Whether a member with this plan may be prepared in this step; one that is served serially, only alone."""
        if not self.meta.members:
            return True
        if member.serial or self._serial:
            return False
        return _expected(member, plan) <= self.limit - self._spent

    def hand_out(self, member: Member) -> None:
        """Hand out a member's pages to be filled.

        Its master stays pinned to the end of the step: a later request of the step that took its pages for another
        master would have them written before they are read.
        """
        assert member.plan is not None
        assert member.master is not None
        assert member.preparation is not None
        plan, master, pages = member.plan, member.master, member.preparation.pages()
        runs = runs_with_fillers(
            plan.compute.tolist(), member.prompt, pages, member.lies.frame, member.lies.filling
        )
        rows, at = plan.restore[:, 0], plan.restore[:, 1]
        moves = np.column_stack([plan.restore, master.transcript.frame.at(rows), member.lies.frame.at(at)])
        ask = _ask(member, plan)
        job = MemberJob(
            member.request.request_id, master.id, master.pages(), pages, moves, [] if ask else runs, ask
        )
        self.meta.members.append(job)
        self._pending[job.request_id] = 0
        self._spent += _expected(member, plan)
        self._serial = member.serial
        self.read.append(master)
        member.master = None

    def answered(self, request_id: str) -> bool:
        """The worker said what came of a member; False if nobody waited for it (any more)."""
        return self._pending.pop(request_id, None) is not None

    def is_waiting(self) -> bool:
        """Whether the worker still owes an answer."""
        return bool(self._pending)

    def unanswered(self) -> list[str]:
        """Members whose answer is overdue; called once a step."""
        self._pending = {name: steps + 1 for name, steps in self._pending.items()}
        return [name for name, steps in self._pending.items() if steps > _PATIENCE]

    def take(self) -> StepMeta:
        """All of it, and start anew."""
        meta, self.meta, self._spent, self._serial = self.meta, StepMeta(), 0, False
        return meta

    def unpin(self) -> None:
        """The step is with the worker, which executes steps in order: its masters may give way to later ones."""
        while self.read:
            self.families.release(self.read.pop())


def _expected(member: Member, plan: Plan) -> int:
    """Tokens a member is likely to compute."""
    assert member.backend is not None
    return plan.computed + (member.backend.expected(plan.reused) if member.backend.at_work else 0)


def _ask(member: Member, plan: Plan) -> Ask | None:
    """What the worker must ask a member's backend, if anything."""
    backend = member.backend
    if backend is None or not backend.at_work:
        return None
    found = [(s.start, s.end, s.row) for s in member.found or []]
    return Ask(
        backend.name,
        backend.options,
        member.family[:2],
        member.tag.round_id,
        member.tag.agent_id,
        member.prompt[: plan.end],
        np.array(found, dtype=np.int64).reshape(-1, 3),
        plan.compute,
        member.lies.frame,
        member.lies.filling,
    )
