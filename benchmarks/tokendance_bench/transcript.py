"""Conversations that keep every round, with forced answers: contexts in which approximate history piles up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokendance_sdk.prompt import RoundPrompt
from tokendance_sdk.workload import Workload

from tokendance_bench.inproc import Engine, Outcome, Prompt


class Transcript:
    """Conversations that keep every round: history, then each round's blocks, task and own answer."""

    def __init__(self, engine: Engine, workload: Workload, answer_tokens: int, uneven: int = 0) -> None:
        self._engine = engine
        self._workload = workload
        self._answer_tokens = answer_tokens
        self._history: dict[str, Any] = {
            a.id: shortened(a.history, uneven * i) for i, a in enumerate(workload.agents)
        }

    def play(self, number: int, tag: dict[str, Any] | None) -> Outcome:
        """One round with forced answers, which then stand in every agent's history."""
        prompts: list[Prompt] = []
        answers: list[list[int]] = []
        for agent in self._workload.agents:
            prompt = RoundPrompt.assemble(
                agent.id,
                self._history[agent.id],
                self._workload.shared(number),
                task=self._workload.rounds[number].task,
                system=agent.system if number == 1 else None,
            )
            prompts.append(self._engine.prompt(prompt))
            recorded = self._engine.encode(self._workload.rounds[number].outputs[agent.id])[
                : self._answer_tokens
            ]
            answers.append(recorded)
            self._history[agent.id] = prompt.answered(self._engine.tokenizer.decode(recorded))
        return self._engine.round(prompts, tag, answers)


def shortened(history: Sequence[str], words: int) -> list[str]:
    """A history without the first words of its longest text."""
    longest = max(range(len(history)), key=lambda i: len(history[i]), default=None)
    return [" ".join(text.split(" ")[words:]) if i == longest else text for i, text in enumerate(history)]
