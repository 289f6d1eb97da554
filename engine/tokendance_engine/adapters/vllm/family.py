"""What a session keeps between rounds: its master, and how its members' pages are keyed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from tokendance_sdk.protocol import MAX_ROUND_SIZE

from tokendance_engine.adapters.vllm.rekey import Chain
from tokendance_engine.reuse.apart import runs_apart
from tokendance_engine.reuse.fillers import runs_with_fillers
from tokendance_engine.reuse.ports import MasterJob, PageTable
from tokendance_engine.segments.transcript import Transcript

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

FamilyKey = tuple[str, ...]
"""(tenant's cache salt, session id), and where shared KV comes from if that is not the session's transcript."""


@dataclass(slots=True, eq=False)
class Master:
    """One transcript's KV in pages.

    Attributes:
        id: unique in this engine; the worker reports failures by it.
        blocks: vLLM's page objects, each holding one reference of ours.
        sent: rows handed to the worker so far.
        users: members that will still restore from it; a master in use is never freed.
    """

    id: int
    transcript: Transcript
    blocks: list[KVCacheBlock] = field(default_factory=list)
    sent: int = 0
    users: int = 0
    retired: bool = False

    @property
    def pending(self) -> int:
        """Rows not yet handed to the worker."""
        return self.transcript.rows - self.sent

    def pages(self) -> PageTable:
        """Page table, int32."""
        return np.array([b.block_id for b in self.blocks], dtype=np.int32)

    def next_job(self, limit: int) -> MasterJob:
        """Hand out the next rows to compute, at most `limit`."""
        start, end = self.sent, min(self.sent + limit, self.transcript.rows)
        whole = self.transcript
        self.sent = end
        if whole.apart:
            return MasterJob(self.id, runs_apart(whole, start, end, self.pages()))
        runs = runs_with_fillers([(start, end)], whole.tokens(), self.pages(), whole.frame, whole.filling())
        return MasterJob(self.id, runs)


@dataclass(slots=True, eq=False)
class Family:
    """What a session keeps between rounds.

    Attributes:
        master: its master.
        lost: the one that gave its pages away, if they may come back from the store.
        chains: how its members' pages are keyed.
    """

    master: Master | None = None
    lost: Master | None = None
    chains: dict[str, Chain] = field(default_factory=dict)

    def chain(self, agent: str, method: str) -> Chain | None:
        """How an agent's pages are keyed, if they were made by the same backend with the same options."""
        chain = self.chains.get(agent)
        return chain if chain is not None and chain.method == method else None

    def remember(self, agent: str, chain: Chain) -> None:
        """Keep how an agent's pages are keyed; beyond a round of the largest size, the oldest is forgotten."""
        self.chains.pop(agent, None)
        self.chains[agent] = chain
        if len(self.chains) > MAX_ROUND_SIZE:
            del self.chains[next(iter(self.chains))]
