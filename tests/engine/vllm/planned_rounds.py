"""Rounds planned and prepared over a page pool of vLLM's own, without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from page_tape import Tape, check_context
from tiny_rounds import FILLER, NEUTRAL, Block, Prompt, cut, private
from tokendance_engine.adapters.vllm.family import Master
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.page_pool import PagePool
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.adapters.vllm.round_planner import RoundPlanner
from tokendance_engine.adapters.vllm.step_work import StepWork
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.backends import make_backend
from tokendance_engine.rounds.tag import EngineTag
from tokendance_sdk.protocol import FallbackReason
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

PAGE = 16
MARKER = (77, 78)
init_none_hash(sha256)
HASHER = get_request_block_hasher(PAGE, sha256)


def out(name: int, size: int = 60) -> Block:
    """A shared block: the output of one agent."""
    return tuple(100 * name + 100 + i for i in range(size))


def make_request(name: str, tokens: Sequence[int], answer: int = 16) -> Request:
    """A waiting request of vLLM's own."""
    params = SamplingParams(max_tokens=answer)
    return Request(name, list(tokens), params, None, block_hasher=HASHER)


class Engine:
    """Families, a page pool and the planner; `plan` stands for the scheduler closing a group.

    Args:
        settings: of the engine's configuration.
    """

    def __init__(self, pages: int = 201, max_rows: int = 4096, share: float = 0.5, **settings: Any) -> None:
        self.blocks = BlockPool(pages, True, PAGE)
        self.pool = PagePool(self.blocks)
        self.tape = Tape(pages, PAGE)
        self.families = Families(PAGE, share)
        self.families.bind(self.pool)
        small = {"balanced_tokens": 8, "tail_tokens": 16, **settings}
        made = EngineConfig.resolve(flags=small, environ={})
        self.placement = Placement(made, PAGE, max_tokens=4096, max_positions=4096, filler=FILLER)
        self.planner = RoundPlanner(self.families, made, self.placement, max_rows, NEUTRAL)

    @property
    def free(self) -> int:
        return self.pool.free

    def plan(self, prompts: Sequence[Prompt], **how: Any) -> list[Member]:
        """Members of one round; agent i sends prompt i."""
        members = [self.member(prompt, f"agent-{i}", **how) for i, prompt in enumerate(prompts)]
        self.planner.plan(members)
        self.check(members)
        return members

    def member(
        self,
        prompt: Prompt,
        agent: str,
        session: str = "s",
        backend: str = "master",
        cached: int | None = None,
        first: int = 8,
        answer: int = 16,
        open_ended: bool = False,
        **tag: Any,
    ) -> Member:
        """A member that has arrived; what the pool holds of it is cached, unless `cached` says otherwise."""
        tokens, segments = cut(prompt)
        member = Member(
            make_request(agent, tokens.tolist(), answer),
            EngineTag("r", agent, session, agent, **{"fidelity": "fast", **tag}),
            ("", session),
            tokens,
            segments,
            make_backend(backend, first, {}),
            0.0,
            filler=FILLER,
            answer=answer,
            open_ended=open_ended,
        )
        family = self.families.get(member.family)
        if family is not None and agent in family.chains:
            member.begin(family.chains[agent].usable(tokens, PAGE))
        member.cached = self.cached(member) if cached is None else cached
        return member

    def cached(self, member: Member) -> int:
        """Tokens the pool holds of a member, never all of them."""
        keys = member.request.block_hashes[: (len(member.prompt) - 1) // PAGE]
        return len(self.pool.lookup(keys)) * PAGE

    def check(self, members: Sequence[Member]) -> None:
        """Every member has a reason, or a pinned master and segments whose rows hold its tokens."""
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

    def prepare(self, members: Sequence[Member]) -> None:
        """What the scheduler half does with planned members, and a worker that fills all their pages in one step."""
        work = StepWork(self.families, 1 << 30)
        for member in members:
            assert member.master is not None
            assert work.compute_master(member.master)
            member.plan = plan = self.placement.plan(member, member.master.transcript)
            cached = self.pool.lookup(member.request.block_hashes[: plan.cached // PAGE])
            start = plan.approximate_from
            member.key_apart(None if start is None else start // PAGE)
            member.preparation = Preparation.make(self.pool, cached, plan, member.master.blocks, PAGE)
            work.hand_out(member)
        self.tape.run(work.take())
        work.unpin()
        for member in members:
            assert member.preparation is not None
            member.preparation.publish(self.pool, member.request.block_hashes, PAGE)
            member.ready = True

    def tables(self, members: Sequence[Member]) -> list[list[int]]:
        """Page tables of prepared members."""
        return [m.preparation.pages().tolist() for m in members if m.preparation is not None]

    def check_pages(self, members: Sequence[Member]) -> None:
        """In every prepared page stand the member's own tokens, at its own positions."""
        for member in members:
            assert member.preparation is not None
            n = len(member.preparation.table) * PAGE
            rows = self.tape.read(member.preparation.pages(), 0, n)
            check_context(rows, member.prompt[:n].tolist(), positions(member)[:n], member.lies.filling)

    def finish(self, members: Sequence[Member], answer: Block = ()) -> None:
        """The members end; their session remembers how their pages lie."""
        for member in members:
            member.request.append_output_token_ids(list(answer))
            if member.preparation is not None:
                member.preparation.release(self.pool)
                member.preparation = None
            self.families.get_or_make(member.family).remember(member.tag.agent_id, member.chain())
        self.done(members)

    def done(self, members: Sequence[Member]) -> None:
        for member in members:
            if member.master is not None:
                self.families.release(member.master)
                member.master = None

    def current(self, session: str = "s") -> Master | None:
        family = self.families.get(("", session))
        return family.master if family else None

    def master(self) -> Master:
        """The one there must be."""
        master = self.current()
        assert master is not None
        return master


def round_of(blocks: Sequence[Block], members: int = 3, history: int = 30) -> list[Prompt]:
    return [[private(m, 0, history + m), *blocks, MARKER] for m in range(members)]


def covered(member: Member) -> int:
    return sum(s.end - s.start for s in member.found or [])


def reasons(members: Sequence[Member]) -> set[FallbackReason | None]:
    return {m.reason for m in members}


def own_tokens(master: Master) -> list[int]:
    """A master's tokens without fillers."""
    return [int(t) for t in master.transcript.tokens() if t != FILLER]


def positions(member: Member) -> list[int]:
    """Where a member's prompt stands."""
    return [int(p) for p in member.lies.frame.at(np.arange(len(member.prompt)))]
