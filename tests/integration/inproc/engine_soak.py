"""Rounds, plain requests, aborts, preemptions and faults at random, in a pool that is too small for all of them.

Members that recompute everything they restore, `exact` members and plain requests have one right answer each, whatever
happens around them; approximate members share pages and leave pages behind. Agents carry their contexts from round to
round, join late and drop out. `TOKENDANCE_SOAK` sets how many engine steps each seed takes.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server
SETTINGS = {"num_gpu_blocks_override": 80, "max_model_len": 1024, "max_num_seqs": 8}
ANSWER = 6
PAGE = 32
SESSIONS = 3
SHARED: list[int] = []
"""Tokens in shared pages, seed by seed."""


def _library(rounds: Rounds) -> list[list[Prompt]]:
    """Sessions of four agents that share a system prompt; two agents have the same history."""
    system, end, library = rounds.random(70), rounds.random(20), []
    for s in range(SESSIONS):
        blocks = [rounds.random(n) for n in (100, 12, 90)]
        twin = rounds.random(60)
        histories = [twin, twin, rounds.random(30 + 40 * s), rounds.random(110)]
        orders = [blocks, blocks, blocks, blocks[::-1]]
        library.append(
            [
                join(f"s{s}a{i}", system + h, o, end)
                for i, (h, o) in enumerate(zip(histories, orders, strict=True))
            ]
        )
    return library


class Watch:
    """The bytes of masters' pages, which nobody may write to once they are full."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._seen: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        self.compared = 0

    def look(self) -> None:
        cache = next(iter(self._rounds.worker._caches.values()))
        alive = {}
        for master in self._rounds.scheduler._families.masters():
            if master.id in self._rounds.worker._broken_masters:
                continue
            for i in range(master.sent // PAGE):
                page, before = self._seen.get((master.id, i), (master.blocks[i].block_id, None))
                assert page == master.blocks[i].block_id, "a master's page was exchanged"
                now = cache[page]
                if before is not None:
                    assert torch.equal(before, now), f"page {page} of master {master.id} was written to"
                    self.compared += 1
                alive[master.id, i] = (page, now.clone() if before is None else before)
        self._seen = alive


class Truth:
    """What plain vLLM writes into the pages of some prompts. Whoever writes them, exact keys must lead to nothing else.

    A wrong page may change no answer for thousands of steps, so pages are compared, not only answers.
    """

    def __init__(self, rounds: Rounds, prompts: list[Prompt]) -> None:
        self._rounds = rounds
        self._pages: list[tuple[str, Any, list[torch.Tensor]]] = []
        self.compared = 0
        side, chains = rounds.scheduler, list[Any]()
        known = side.on_new_request

        def watched(request: Any) -> None:
            known(request)
            chains.append(list(request.block_hashes))

        side.on_new_request = watched
        try:
            for prompt in prompts:  # one at a time: the pool is too small for all of them
                rounds.forget()
                rounds.round([prompt])
                for number, key in enumerate(chains.pop()):
                    [block] = side.pool.lookup([key])
                    self._pages.append((f"page {number} of {prompt.agent}", key, self._read(block)))
        finally:
            del side.on_new_request
        rounds.forget()
        rounds.scribble()

    def look(self) -> None:
        for name, key, right in self._pages:
            for block in self._rounds.scheduler.pool.lookup([key]):
                for now, wanted in zip(self._read(block), right, strict=True):
                    assert torch.allclose(now, wanted, rtol=1e-2, atol=2e-3), f"{name} is wrong"
                self.compared += 1

    def _read(self, block: Any) -> list[torch.Tensor]:
        return [cache[block.block_id].clone() for cache in self._rounds.worker._caches.values()]


def _grown(
    rounds: Rounds, prompt: Prompt, answer: list[int], blocks: list[list[int]], end: list[int]
) -> Prompt:
    """An agent's context one round later; back to its start when it gets long."""
    more = join(prompt.agent, prompt.tokens + answer, blocks, end)
    return Prompt(prompt.agent, more.tokens, prompt.boundaries + more.boundaries)


def _told(rounds: Rounds, name: str, got: list[int], truth: list[int], prompts: list[Prompt]) -> str:
    """What a wrong answer says, and by how much its first wrong token is less likely than the right one."""
    rounds.forget()
    [prompt] = [p for p in prompts if name.endswith(p.agent)]
    [logprobs] = rounds.round([prompt], None, [truth]).logprobs
    at = next((i for i, (a, b) in enumerate(zip(got, truth, strict=False)) if a != b), None)
    gap = None if at is None else float(logprobs[at][truth[at]] - logprobs[at][got[at]])
    return f"{name}: {got} instead of {truth}, gap {gap}"


@pytest.mark.parametrize("seed", range(4))
def test_every_exact_answer_is_right_whatever_happens_around_it(rounds: Rounds, seed: int) -> None:
    dice = random.Random(seed)
    library = _library(rounds)
    prompts = [p for session in library for p in session]
    truth = {p.agent: t for p, t in zip(prompts, rounds.plain(prompts, max_tokens=ANSWER), strict=True)}
    steps = Steps(rounds)
    scheduler = rounds.llm.llm_engine.engine_core.engine_core.scheduler
    gather = rounds.scheduler._gather
    cap, gather.cap = gather.cap, 0.05
    checked: dict[str, str] = {}
    names: list[str] = []
    contexts = {p.agent: p for p in prompts}
    asked: dict[str, Prompt] = {}
    names_of: dict[str, str] = {}
    pending: dict[str, Prompt] = {}
    shared = 0
    watch, right = Watch(rounds), Truth(rounds, prompts)
    step, limit = 0, int(os.environ.get("TOKENDANCE_SOAK", "320"))

    def add(prompt: Prompt, kind: str, fields: dict[str, Any] | None) -> None:
        names.append(f"{kind}-{len(names)}-{prompt.agent}")
        if kind != "fast":
            checked[names[-1]] = prompt.agent
        steps.add(names[-1], prompt, fields, max_tokens=ANSWER)

    try:
        while step < limit:
            chance = dice.random()
            if len(scheduler.requests) > 14:
                chance = 0.5 + chance / 2
            if chance < 0.12:
                session = dice.randrange(SESSIONS)
                group = dice.sample(library[session], dice.randint(2, 4))
                kind = dice.choice(["all", "fast", "fast", "exact"])
                size = dice.choice([len(group), len(group), len(group) + 1, len(group) - 1, None])
                how = {"backend": "all"} if kind == "all" else {"fidelity": kind}
                tag = {"round_id": f"{kind}{session}:{dice.randrange(3)}", "round_size": size, **how}
                more, end = [rounds.random(70), rounds.random(40)], rounds.random(12)
                for prompt in group:
                    if kind == "fast":
                        # Some of them have the last round in their context, some join or start anew.
                        before = contexts[prompt.agent]
                        known = asked.get(prompt.agent) is before and dice.random() < 0.8
                        answer = steps.tokens(names_of[prompt.agent]) if known else []
                        long = len(before.tokens) > 600 or not known
                        contexts[prompt.agent] = prompt if long else _grown(rounds, before, answer, more, end)
                        prompt = contexts[prompt.agent]
                    mixed = kind == "all" and dice.random() < 0.2
                    add(prompt, "exact" if mixed else kind, {**tag, "fidelity": "exact"} if mixed else tag)
                    if kind == "fast":
                        pending[names[-1]] = prompt
            elif chance < 0.2:
                add(dice.choice(prompts), "plain", None)
            elif chance < 0.53 and chance > 0.5 and scheduler.requests:
                name = dice.choice([n for n in names if n not in steps.outputs] or names)
                checked.pop(name, None)
                steps.abort(name)
            elif 0.55 < chance < 0.6 and scheduler.running:
                victim = dice.choice(scheduler.running)
                scheduler.running.remove(victim)
                scheduler._preempt_request(victim, 0.0)
            if 0.7 < chance < 0.73:
                with rounds.broken(
                    dice.choice(["collect_members", "compute_master"]), RuntimeError("injected")
                ):
                    steps.step()
            with steps.chunks(dice.choice([0, 0, 48, 100])):
                for _ in range(dice.randint(1, 3)):
                    steps.step()
                    step += 1
                    rounds.scheduler.check()
                    watch.look()
                    right.look()
            for name in [n for n in pending if n in steps.outputs and steps.outputs[n].finished]:
                prompt = pending.pop(name)
                asked[prompt.agent], names_of[prompt.agent] = prompt, name
                shared += steps.report(name)["shared_tokens"]
        steps.finish()
    finally:
        gather.cap = cap
    wrong = [n for n, agent in checked.items() if steps.tokens(n) != truth[agent]]
    assert not wrong, [_told(rounds, n, steps.tokens(n), truth[checked[n]], prompts) for n in wrong]
    kinds = {name.partition("-")[0] for name in checked}
    assert {"all", "exact", "plain"} <= kinds
    reports = [steps.report(n) for n in checked if not n.startswith("plain")]
    came = [r["recomputed_tokens"] + r["restored_tokens"] for r in reports]
    assert any(came), "nothing was restored: the test shows nothing"
    SHARED.append(shared)
    assert watch.compared > 100
    assert right.compared > 100
    for report in reports:
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert sum(report[p] for p in parts) == report["prompt_tokens"] + report["filler_tokens"]


def test_pages_were_shared_in_all_this(rounds: Rounds) -> None:
    assert sum(SHARED) > 0, "no page was shared: the soak shows nothing of it"
