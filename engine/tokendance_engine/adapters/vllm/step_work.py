"""What the worker is to do in the step that is being scheduled, within one budget of computed tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import StepMeta
from tokendance_engine.reuse.plan import Plan


class StepWork:
    """Masters and members of one step; emptied at its end.

    Args:
        families: where masters are unpinned.
        page_size: tokens per page.
        limit: most tokens to compute in a step; its first member may exceed it.
    """

    def __init__(self, families: Families, page_size: int, limit: int) -> None:
        self._families = families
        self._page_size = page_size
        self.limit = limit
        self.meta = StepMeta()
        self._spent = 0
        self.read: list[Master] = []

    def compute_master(self, master: Master) -> bool:
        """Hand out what a master still lacks; False while it does not all fit into this step."""
        room = self.limit - self._spent
        if master.pending and room > 0:
            job = master.next_job(room)
            self.meta.masters.append(job)
            self._spent += len(job.run.tokens)
        return not master.pending

    def fits(self, plan: Plan) -> bool:
        """Whether a member with this plan may be admitted in this step."""
        return not self.meta.members or plan.computed <= self.limit - self._spent

    def admit(self, member: Member, page_ids: Sequence[int]) -> None:
        """Hand out a member's load.

        Its master stays pinned to the end of the step: a later request of the step that took its pages for another
        master would have them written before this load reads them.
        """
        assert member.plan is not None
        assert member.master is not None
        self.meta.members.append(member.job(np.array(page_ids, dtype=np.int32), self._page_size))
        self._spent += member.plan.computed
        self.read.append(member.master)
        member.master, member.admitted = None, True

    def take(self) -> StepMeta:
        """All of it, and start anew."""
        meta, self.meta, self._spent = self.meta, StepMeta(), 0
        return meta

    def unpin(self) -> None:
        """The step is with the worker, which executes steps in order: its masters may give way to later ones."""
        while self.read:
            self._families.release(self.read.pop())
