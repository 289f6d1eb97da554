"""One engine inside this process, for measurements that need its logits or its quiet."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokendance_sdk.protocol import BODY_KEY

from tokendance_bench import forcing
from tokendance_bench.tokenizing import Prompt, Tokens

__all__ = ["Engine", "Outcome", "Prompt", "divergence"]


@dataclass(slots=True)
class Outcome:
    """One round as an engine served it.

    Attributes:
        seconds: from submission to the last member's end.
        tokens: generated ids per member.
        reports: member reports, None for untagged requests.
        logprobs: float32 [steps, vocab] per member, when answers were forced.
    """

    seconds: float
    tokens: list[list[int]]
    reports: list[dict[str, Any] | None]
    logprobs: list[torch.Tensor] = field(default_factory=list)


class Engine(Tokens):
    """vLLM with the TokenDance connector; untagged requests take vLLM's own path.

    Args:
        model: a Hugging Face folder.
        tokendance: fields of `EngineConfig`.
        settings: keyword arguments for `vllm.LLM`.
    """

    def __init__(
        self, model: str, kv_gib: int = 4, tokendance: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE=str(kv_gib),
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        )
        from tokendance_engine.offline import llm_kwargs
        from vllm import LLM

        defaults = {
            "enforce_eager": True,
            "dtype": "float32",
            "block_size": 32,
            "gpu_memory_utilization": 0.3,
            "logits_processors": [forcing.ForcedAnswers],
        }
        self.llm = LLM(
            model,
            **llm_kwargs(**(tokendance or {})),
            **{**defaults, **settings},
        )
        super().__init__(self.llm.get_tokenizer())
        core = self.llm.llm_engine.engine_core.engine_core
        self._core = core
        self.scheduler = core.scheduler.connector.scheduler
        self._names = 0

    def cache_histories(self, prompts: Sequence[Prompt]) -> None:
        """Let vLLM's prefix cache hold every prompt's history."""
        self.round([Prompt(p.agent, p.history, []) for p in prompts])

    def drain(self) -> None:
        """Run the steps after the last answer, in which stored histories are captured and pages given back."""
        while self._core.scheduler.has_requests():
            self._core.step()

    def forget(self) -> None:
        """Empty the prefix cache, drop all masters and everything that is stored."""
        self.drain()
        self.scheduler.reset()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be reset; is a request still running?")

    def round(
        self,
        prompts: Sequence[Prompt],
        tag: dict[str, Any] | None = None,
        answers: Sequence[list[int]] | None = None,
        max_tokens: int = 1,
    ) -> Outcome:
        """Serve all prompts at once, as members of a round if `tag` (fields of `RoundTag`) is given."""
        from tokendance_engine.offline import tag as tagged
        from vllm import SamplingParams

        params, names = [], []
        for i, prompt in enumerate(prompts):
            one = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
            if answers is not None:
                self._names += 1
                names.append(f"r{self._names}")
                one = forcing.forced(one, answers[i], names[-1])
            if tag is not None:
                agent = prompt.agent.replace(" ", "_")
                one = tagged(one, agent_id=agent, round_size=len(prompts), segments=prompt.boundaries, **tag)
            params.append(one)
        started = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p.tokens} for p in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        logprobs = [torch.stack([kept[s] for s in sorted(kept)]) for kept in map(forcing.captured.pop, names)]
        return Outcome(
            seconds,
            [list(o.outputs[0].token_ids) for o in outputs],
            [(o.kv_transfer_params or {}).get(BODY_KEY) for o in outputs],
            logprobs,
        )


def divergence(exact: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Mean KL(exact || other) over all steps and members, and how often the argmax agrees."""
    kl = [(a.exp() * (a - b)).sum(-1).mean().item() for a, b in zip(exact, other, strict=True)]
    top = [(a.argmax(-1) == b.argmax(-1)).float().mean().item() for a, b in zip(exact, other, strict=True)]
    return float(np.mean(kl)), float(np.mean(top))
