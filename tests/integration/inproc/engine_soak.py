"""Rounds, plain requests, aborts, preemptions and faults at random, in a pool that is too small for all of them.

Members that recompute everything they restore, `exact` members and plain requests have one right answer each, whatever
happens around them; approximate members are there to leave pages behind.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server
SETTINGS = {"num_gpu_blocks_override": 80, "max_model_len": 1024, "max_num_seqs": 8}
ANSWER = 6
SESSIONS = 3


def _library(rounds: Rounds) -> list[list[Prompt]]:
    """Sessions of four agents that share a system prompt; two agents have the same history."""
    system, end, library = rounds.random(70), rounds.random(20), []
    for s in range(SESSIONS):
        blocks = [rounds.random(n) for n in (100, 12, 90)]
        twin = rounds.random(60)
        histories = [twin, twin, rounds.random(30 + 40 * s), rounds.random(110)]
        orders = [blocks, blocks, blocks[::-1], blocks[:1] + blocks[2:]]
        library.append(
            [
                join(f"s{s}a{i}", system + h, o, end)
                for i, (h, o) in enumerate(zip(histories, orders, strict=True))
            ]
        )
    return library


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

    def add(prompt: Prompt, kind: str, fields: dict[str, Any] | None) -> None:
        names.append(f"{kind}-{len(names)}-{prompt.agent}")
        if kind != "fast":
            checked[names[-1]] = prompt.agent
        steps.add(names[-1], prompt, fields, max_tokens=ANSWER)

    try:
        for _ in range(160):
            chance = dice.random()
            if len(scheduler.requests) > 14:
                chance = 0.5 + chance / 2
            if chance < 0.12:
                session = dice.randrange(SESSIONS)
                group = dice.sample(library[session], dice.randint(2, 4))
                kind = dice.choice(["all", "all", "fast", "exact"])
                size = dice.choice([len(group), len(group), len(group) + 1, len(group) - 1, None])
                how = {"backend": "all"} if kind == "all" else {"fidelity": kind}
                tag = {"round_id": f"{kind}{session}:{dice.randrange(3)}", "round_size": size, **how}
                for prompt in group:
                    mixed = kind == "all" and dice.random() < 0.2
                    add(prompt, "exact" if mixed else kind, {**tag, "fidelity": "exact"} if mixed else tag)
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
                steps.step(dice.randint(1, 3))
            rounds.scheduler.check()
        steps.finish()
    finally:
        gather.cap = cap
    wrong = [n for n, agent in checked.items() if steps.tokens(n) != truth[agent]]
    assert not wrong
    kinds = {name.partition("-")[0] for name in checked}
    assert {"all", "exact", "plain"} <= kinds
    reports = [steps.report(n) for n in checked if not n.startswith("plain")]
    assert any(r["recomputed_tokens"] > 0 for r in reports), "nothing was restored: the test shows nothing"
    for report in reports:
        parts = ("cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")
        assert sum(report[p] for p in parts) == report["prompt_tokens"] + report["filler_tokens"]
