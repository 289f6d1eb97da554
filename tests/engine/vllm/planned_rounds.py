"""Rounds planned over a page pool of vLLM's own, without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tiny_rounds import NEUTRAL, Block, Prompt, cut, private
from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.backends import make_backend
from tokendance_engine.rounds.tag import EngineTag
from tokendance_sdk.protocol import FallbackReason
from vllm.v1.core.block_pool import BlockPool

PAGE = 16
MARKER = (77, 78)


def out(name: int, size: int = 60) -> Block:
    """A shared block: the output of one agent."""
    return tuple(100 * name + 100 + i for i in range(size))


class Engine:
    """Families, a page pool and the planner; `plan` stands for the scheduler closing a group."""

    def __init__(self, pages: int = 201, max_rows: int = 4096, share: float = 0.5) -> None:
        self.pool = BlockPool(pages, True, PAGE)
        self.families = Families(PAGE, share)
        self.families.bind(self.pool)
        settings = EngineConfig.resolve(flags={"balanced_tokens": 8, "tail_tokens": 16}, environ={})
        self.planner = RoundPlanner(self.families, settings, max_rows, NEUTRAL)

    def plan(self, prompts: Sequence[Prompt], **how: Any) -> list[Member]:
        """Members of one round; agent i sends prompt i."""
        members = [self.member(prompt, f"agent-{i}", **how) for i, prompt in enumerate(prompts)]
        self.planner.plan(members)
        self.check(members)
        return members

    def member(
        self, prompt: Prompt, agent: str, session: str = "s", backend: str = "master", cached: int = 0
    ) -> Member:
        tokens, segments = cut(prompt)
        tag = EngineTag("r", agent, session, agent)
        request: Any = SimpleNamespace(request_id=agent)
        made = make_backend(backend, 8, {})
        return Member(request, tag, ("", session), tokens, segments, made, 0.0, cached=cached)

    def check(self, members: Sequence[Member]) -> None:
        """Every member has either a reason or found segments whose rows hold its tokens, and a pinned master."""
        self.families.check()
        for member in members:
            assert member.found is not None
            assert (member.reason is None) == (member.master is not None)
            if member.master is None:
                continue
            rows = member.master.transcript.tokens()
            assert member.found
            for s in member.found:
                assert (
                    rows[s.row : s.row + s.end - s.start].tolist() == member.prompt[s.start : s.end].tolist()
                )

    def done(self, members: Sequence[Member]) -> None:
        for member in members:
            if member.master is not None:
                self.families.release(member.master)
                member.master = None

    def current(self, session: str = "s") -> Master | None:
        family = self.families.get(("", session))
        return family.master if family else None


def round_of(blocks: Sequence[Block], members: int = 3, history: int = 30) -> list[Prompt]:
    return [[private(m, 0, history + m), *blocks, MARKER] for m in range(members)]


def covered(member: Member) -> int:
    return sum(s.end - s.start for s in member.found or [])


def reasons(members: Sequence[Member]) -> set[FallbackReason | None]:
    return {m.reason for m in members}
