"""An engine driven step by step, so that a test decides what meets in one step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rounds import Rounds
from tokendance_bench.inproc import Prompt
from tokendance_engine.offline import tag
from vllm import SamplingParams


class Steps:
    """Requests by name, and their answers as they come."""

    def __init__(self, rounds: Rounds) -> None:
        self._engine = rounds.llm.llm_engine
        self.rounds = rounds
        self.outputs: dict[str, Any] = {}

    def add(
        self,
        name: str,
        prompt: Prompt,
        fields: dict[str, Any] | None = None,
        max_tokens: int = 12,
        **more: Any,
    ) -> None:
        """Hand in a prompt, as a member if `fields` (of `RoundTag`) are given."""
        salt = more.pop("cache_salt", None)
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)
        if fields is not None:
            params = tag(params, **{"agent_id": prompt.agent, "segments": prompt.boundaries, **fields})
        request: dict[str, Any] = {"prompt_token_ids": prompt.tokens}
        if salt is not None:
            request["cache_salt"] = salt
        self._engine.add_request(name, request, params)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for output in self._engine.step():
                self.outputs[output.request_id] = output

    def abort(self, *names: str) -> None:
        self._engine.abort_request(list(names))

    def finish(self, limit: int = 2_000) -> None:
        """Step until nothing is left.

        Raises:
            AssertionError: requests are left after `limit` steps.
        """
        for _ in range(limit):
            if not self._engine.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"no end after {limit} steps")

    def tokens(self, name: str) -> list[int]:
        return list(self.outputs[name].outputs[0].token_ids)

    def report(self, name: str) -> dict[str, Any]:
        report: dict[str, Any] = self.outputs[name].kv_transfer_params["tokendance"]
        return report

    @contextlib.contextmanager
    def chunks(self, tokens: int) -> Iterator[None]:
        """Prefill at most this many tokens of a request per step."""
        config = self.rounds.llm.llm_engine.engine_core.engine_core.scheduler.scheduler_config
        before, config.long_prefill_token_threshold = config.long_prefill_token_threshold, tokens
        try:
            yield
        finally:
            config.long_prefill_token_threshold = before
