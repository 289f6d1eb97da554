"""Offline use: the engine inside a Python program, without a server.

```python
from vllm import LLM, SamplingParams
from tokendance_engine.offline import llm_kwargs, tag

llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct", **llm_kwargs(gather_ms=50))
agents = ("ann", "bob")
params = [tag(SamplingParams(max_tokens=32), round_id="sim:1", agent_id=a, round_size=2) for a in agents]
outputs = llm.generate([f"I am {a}.<TTSEP>{shared}<TTSEP>Go on." for a in agents], params)
outputs[0].kv_transfer_params["tokendance"]   # the member report
```

Separators are split in the prompts of tagged requests only. vLLM checks the length of a prompt before they
are taken out, so a prompt within a few tokens of the context's end may be refused on their account.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from tokendance_sdk.protocol import BODY_KEY, RoundTag

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError


def llm_kwargs(**settings: Any) -> dict[str, Any]:
    """Switch TokenDance on in this process; returns keyword arguments for `vllm.LLM` or `AsyncEngineArgs`.

    Args:
        settings: fields of `EngineConfig`; what is not given comes from `TOKENDANCE_*` or the defaults.

    Raises:
        ConfigError: a wrong setting.
        UnsupportedVersionError: the running vLLM is not one the hooks were read against.
    """
    from tokendance_engine import plugin

    config = EngineConfig.resolve(flags=settings)
    plugin.activate()
    return {
        "kv_transfer_config": plugin.kv_transfer_config(config),
        "worker_extension_cls": plugin.WORKER_EXTENSION,
    }


def tag(sampling_params: Any, **fields: Any) -> Any:
    """A copy of vLLM's `SamplingParams` for a member of a round; the original is not changed.

    Args:
        sampling_params: the params to start from.
        fields: fields of `tokendance_sdk.protocol.RoundTag`: `round_id`, and optionally `agent_id`,
            `round_size`, `session_id`, `fidelity`, `placement`, `backend`, `options`, `segments` (token-id prompts).

    Raises:
        RequestRejectedError: a wrong field; names it, the value and what is allowed.
    """
    try:
        checked = RoundTag.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestRejectedError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']} (got {first['input']!r:.140})"
        ) from None
    params = sampling_params.clone()
    extra = dict(params.extra_args or {})
    transfer = {**(extra.get("kv_transfer_params") or {}), BODY_KEY: checked.model_dump(exclude_unset=True)}
    params.extra_args = {**extra, "kv_transfer_params": transfer}
    return params
