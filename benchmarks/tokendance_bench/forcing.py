"""A logits processor that forces recorded answers, so that every system decodes the same tokens.

In one process with the engine it also keeps the raw logits of forced steps, which is how fidelity is measured.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

ARGUMENT = "tokendance_forced"
NAME = "tokendance_name"

captured: dict[str, dict[int, torch.Tensor]] = {}
"""request name -> step -> raw log-probabilities [vocab], float32, of requests that carry `NAME`."""


class ForcedAnswers(LogitsProcessor):  # type: ignore[misc]
    """Forces `SamplingParams.extra_args[ARGUMENT]` (token ids) step by step."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[list[int], list[int], str | None]] = {}

    def is_argmax_invariant(self) -> bool:
        """Forcing changes the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as vLLM moves them between rows of its batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, output in batch_update.added:
            self._rows.pop(index, None)
            extra = params.extra_args or {}
            if ARGUMENT in extra:
                self._rows[index] = (extra[ARGUMENT], output, extra.get(NAME))
        for a, b, how in batch_update.moved:
            rows = self._rows.pop(a, None), self._rows.pop(b, None)
            if rows[0] is not None:
                self._rows[b] = rows[0]
            if how == MoveDirectionality.SWAP and rows[1] is not None:
                self._rows[a] = rows[1]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Keep the row if it is named, then leave only the forced token possible."""
        for index, (answer, output, name) in self._rows.items():
            step = len(output)
            if step >= len(answer):
                continue
            if name is not None:
                captured.setdefault(name, {})[step] = torch.log_softmax(logits[index].float(), -1)
            logits[index].fill_(float("-inf"))
            logits[index, answer[step]] = 0.0
        return logits


def forced(params: SamplingParams, answer: list[int], name: str | None = None) -> SamplingParams:
    """A copy of `params` whose answer is forced, and captured under `name`."""
    params = params.clone()
    params.max_tokens = len(answer)
    params.ignore_eos = True
    params.extra_args = {**(params.extra_args or {}), ARGUMENT: answer, **({NAME: name} if name else {})}
    return params
