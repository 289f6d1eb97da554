"""Wrap one engine client's `generate`: bring round members together, and collect their reports."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tokendance_engine.frontend.context import CURRENT, RequestState, tagged_state
from tokendance_engine.frontend.reporting import take_report

_MARK = "__tokendance__"


def collect_reports(client: Any) -> None:
    """Replace `client.generate` on the instance; untagged requests get vLLM's own generator.

    Idempotent.
    """
    inner = client.generate
    if hasattr(inner, _MARK):
        return

    def generate(prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any) -> Any:
        state = tagged_state()
        if state is None:
            return inner(prompt, sampling_params, request_id, **kwargs)
        return _tagged(client, inner, state, prompt, sampling_params, request_id, kwargs)

    setattr(generate, _MARK, True)
    client.generate = generate


async def _tagged(
    client: Any,
    inner: Any,
    state: RequestState,
    prompt: Any,
    sampling_params: Any,
    request_id: str,
    kwargs: dict[str, Any],
) -> AsyncGenerator[Any, None]:
    CURRENT.set(state)  # the task that iterates may be another one than the one that called generate
    if state.muster is not None:
        try:
            await _validate(client, prompt, sampling_params, request_id, kwargs)
        except BaseException:
            state.muster.drop(state.index)
            raise
        state.size = await state.muster.arrive(state.index)
    async with aclosing(inner(prompt, sampling_params, request_id, **kwargs)) as outputs:
        async for output in outputs:
            report = take_report(output)
            if report is not None:
                state.reports[request_id] = report
            yield output


async def _validate(
    client: Any, prompt: Any, sampling_params: Any, request_id: str, kwargs: dict[str, Any]
) -> None:
    """Have vLLM check the request as it will when it is added, so that a refused member is not counted."""
    names = ("lora_request", "tokenization_kwargs", "trace_headers", "priority", "data_parallel_rank")
    client.input_processor.process_inputs(
        request_id,
        prompt,
        sampling_params,
        supported_tasks=await client.get_supported_tasks(),
        **{name: kwargs[name] for name in names if kwargs.get(name) is not None},
    )
