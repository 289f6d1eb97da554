"""How many rounds agents talk before the first different answer: greedy answers, with reuse and without.

Plain vLLM plays a workload's rounds with its own answers. Every system is then given the prompts that these answers
make, round after round, until one of its members answers otherwise: from there on its simulation would be another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokendance_sdk.workload import Workload

from tokendance_bench.inproc import Engine
from tokendance_bench.run import Run

Answers = list[list[int]]
"""Tokens of every member, in agent order."""
SILENT = "..."
"""Stands for an answer without text."""


def measure(
    engine: Engine,
    workload: Workload,
    answer_tokens: int,
    systems: Mapping[str, dict[str, Any] | None],
    run: Run,
) -> None:
    """One workload: every system against plain vLLM, one row each.

    Args:
        systems: name -> fields of its round tag; None: plain vLLM, members in reverse order (the floor).
    """
    run.doing(f"{workload.name}, greedy, plain vLLM")
    own, tokens = played(engine, workload, answer_tokens)
    for system, tag in systems.items():
        run.doing(f"{workload.name}, greedy, {system}")
        found = compared(engine, own, tokens, tag)
        run.add({"workload": workload.name, "level": system, "context": "greedy", **found})


def played(engine: Engine, workload: Workload, answer_tokens: int) -> tuple[Workload, list[Answers]]:
    """The workload with plain vLLM's own greedy answers as outputs, and their tokens round by round."""
    engine.forget()
    tokens: list[Answers] = []
    for number in range(len(workload.rounds)):
        prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
        tokens.append(engine.round(prompts, None, max_tokens=answer_tokens).tokens)
        texts = [engine.tokenizer.decode(answer, skip_special_tokens=True).strip() for answer in tokens[-1]]
        said = {who: text or SILENT for who, text in zip(workload.agent_ids, texts, strict=True)}
        rounds = list(workload.rounds)
        rounds[number] = replace(rounds[number], outputs=said, own=said)
        workload = replace(workload, rounds=tuple(rounds))
    return workload, tokens


def compared(
    engine: Engine, workload: Workload, plain: Sequence[Answers], tag: dict[str, Any] | None
) -> dict[str, int | None]:
    """Rounds before the first different answer, and where in it; `tag` None: plain vLLM, members in reverse order.

    Returns:
        `rounds_same` of `rounds`; `agent` (place) and `token` of the first difference, None where there is none.
    """
    engine.forget()
    for number, expected in enumerate(plain):
        prompts = [engine.prompt(workload.prompt(agent, number)) for agent in workload.agents]
        length = len(expected[0])
        if tag is None:
            got = engine.round(prompts[::-1], None, max_tokens=length).tokens[::-1]
        else:
            got = engine.round(prompts, {"round_id": f"greedy:{number}", **tag}, max_tokens=length).tokens
        if found := first_difference(expected, got):
            return {"rounds": len(plain), "rounds_same": number, "agent": found[0], "token": found[1]}
    return {"rounds": len(plain), "rounds_same": len(plain), "agent": None, "token": None}


def first_difference(expected: Answers, got: Answers) -> tuple[int, int] | None:
    """(agent, token) of the earliest differing token over all agents; None if all are equal.

    Raises:
        ValueError: another number of agents, or answers of other lengths.
    """
    found = [
        (place, agent)
        for agent, (a, b) in enumerate(zip(expected, got, strict=True))
        for place, (x, y) in enumerate(zip(a, b, strict=True))
        if x != y
    ]
    return min(found)[::-1] if found else None
