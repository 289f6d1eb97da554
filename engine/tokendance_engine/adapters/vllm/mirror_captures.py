"""What is captured, and when: masters in the step that first takes from them, members when they end."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from tokendance_engine.adapters.vllm.common_start import CommonStarts
from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.history import marked, positions_of
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.mirror_jobs import CaptureJob, MasterCapture, Owner
from tokendance_engine.reuse.plan import Plan, Spans
from tokendance_engine.storage.handover import Taken

if TYPE_CHECKING:
    from vllm.v1.request import Request

_KNOWN = 1 << 16
"""Most members, and most masters, remembered as captured."""


class Captures:
    """Captures of this engine.

    Args:
        on: whether anything is stored; if not, every method is a no-op.
        page_size: tokens per page.

    Attributes:
        masters, jobs: this step's; the caller takes them.
        pending: requests whose pages are held until the worker has answered.
        starts: what members of a session have in common.
    """

    def __init__(self, on: bool, page_size: int) -> None:
        self.masters: list[MasterCapture] = []
        self.jobs: list[CaptureJob] = []
        self.pending: set[str] = set()
        self.starts = CommonStarts(page_size)
        self._on = on
        self._page_size = page_size
        self._known: OrderedDict[Owner, str] = OrderedDict()
        self._kept: OrderedDict[int, int] = OrderedDict()

    def knows(self, owner: Owner) -> bool:
        """Whether this engine has captured the member; of very old ones it is forgotten."""
        return owner in self._known

    def made_by(self, owner: Owner) -> str | None:
        """Identity of the backend whose KV was captured of a member; None if this engine does not know."""
        return self._known.get(owner)

    def forget(self) -> None:
        """The store was emptied."""
        self._known.clear()
        self._kept.clear()
        self.starts.forget()

    def keep_master(self, member: Member, master: Master) -> None:
        """Have a master captured at the end of the step in which a member takes from it; pinned until then.

        Not later: an idle master may have to give its pages away long before its members end.
        """
        member.history.master = master.id
        rows = master.transcript.rows
        if not self._on or not member.storable or self._kept.get(master.id) == rows:
            return
        self._kept.pop(master.id, None)
        self._kept[master.id] = rows
        if len(self._kept) > _KNOWN:
            self._kept.popitem(last=False)
        whole = master.transcript
        self.masters.append(
            MasterCapture(
                owner_of(member),
                master.id,
                marked(whole.tokens(), whole.filling()),
                master.pages(),
                positions_of(whole.frame),
            )
        )

    def capture(self, request: Request, member: Member, pages: list[int]) -> bool:
        """Have a member's KV kept; True if vLLM must hold its pages until the worker has reported it.

        Args:
            pages: its page table.
        """
        # The last token that was generated has no KV; after an abort or a preemption fewer tokens have.
        size = min(request.num_computed_tokens, request.num_tokens - 1)
        if not self._on or not member.storable or not member.seated or size < self._page_size:
            return False
        if len(pages) * self._page_size < size:
            return False
        owner, lies = owner_of(member), member.lies
        tokens = np.array(request.all_token_ids[:size], dtype=np.int32)
        start = lies.points[0].page * self._page_size if lies.points else size
        used = np.array(pages[: -(-size // self._page_size)], dtype=np.int32)
        taken = self._taken(member)
        # What comes from the master is stored once already.
        common = min(self.starts.of(member), size, int(taken.spans[:, 1].min(initial=size)))
        job = CaptureJob(
            request.request_id,
            owner,
            marked(tokens, lies.filling.before(size)),
            used,
            positions_of(lies.frame.before(size)),
            taken,
            # Pages that were lost and computed again since are not those the store knows.
            0 if request.num_preemptions else min(member.cached or 0, size),
            start if start < size else None,
            common // self._page_size * self._page_size,
        )
        self._known[owner] = member.method
        self._known.move_to_end(owner)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        self.jobs.append(job)
        self.pending.add(job.request_id)
        return True

    def _taken(self, member: Member) -> Taken:
        plan = member.plan if member.ready and member.reason is None else None
        if plan is None or member.history.master is None:
            return Taken(-1, np.zeros((0, 3), dtype=np.int64))
        return Taken(member.history.master, spans_of(plan, self._page_size))


def spans_of(plan: Plan, page_size: int) -> Spans:
    """All that a plan takes from the master, copied or shared: (master row, token, length), int64 [n, 3]."""
    shared = np.column_stack(
        [plan.shared[:, 1] * page_size, plan.shared[:, 0] * page_size, np.full(len(plan.shared), page_size)]
    )
    spans: Spans = np.concatenate([plan.restore, shared]).astype(np.int64).reshape(-1, 3)
    return spans


def owner_of(member: Member) -> Owner:
    """Whose history a member's is."""
    salt, session = member.family[:2]
    return Owner(salt, session, member.tag.agent_id)
