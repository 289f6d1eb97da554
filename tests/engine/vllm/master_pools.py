"""Families over a small page pool of vLLM's own, for tests of masters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.segments.transcript import Transcript
from vllm.v1.core.block_pool import BlockPool

PAGE = 16
PAGES = 33  # one of them is vLLM's null page


def transcript(rows: int) -> Transcript:
    made = Transcript(np.arange(3, dtype=np.int32))
    if rows > 3:
        made.append(b"a", np.arange(3, rows, dtype=np.int32))
    return made


def longer(old: Transcript, rows: int) -> Transcript:
    made = old.copy()
    made.append(rows.to_bytes(4, "big"), np.arange(rows, dtype=np.int32))
    return made


@dataclass
class Setup:
    share: float = 0.5
    limit: int = 4096
    pool: BlockPool = field(default_factory=lambda: BlockPool(PAGES, True, PAGE))

    def __post_init__(self) -> None:
        self.families = Families(PAGE, self.share, self.limit)
        self.pages = PagePool(self.pool)
        self.families.bind(self.pages)
        self.start = self.free

    @property
    def free(self) -> int:
        return int(self.pool.get_num_free_blocks())

    def master(self, session: str, rows: int, users: int = 0) -> Master:
        master = self.families.grow(self.families.get_or_make(("", session)), transcript(rows), False)
        assert master is not None
        master.users = users
        return master
