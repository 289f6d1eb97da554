"""`GET /tokendance/v1/status`: what is running, with which settings, and what the engine holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from tokendance_sdk.protocol import PROTOCOL_VERSION, STATUS_PATH
from vllm.logger import init_logger

from tokendance_engine.config import EngineConfig
from tokendance_engine.frontend.renderers import segmenter_of

logger = init_logger("vllm.tokendance")
_ENGINE_TIMEOUT_S = 10.0


def status_router(config: EngineConfig) -> APIRouter:
    """The route, guarded by the server's API keys like every `/v1` route."""
    router = APIRouter()

    @router.get(STATUS_PATH)
    async def status(raw_request: Request) -> dict[str, Any]:
        check_key(raw_request)
        state = raw_request.app.state
        workers = await _ask_workers(state.engine_client)
        segmenter = segmenter_of(state.engine_client.renderer)
        return {
            "version": _own_version(),
            "protocol_version": PROTOCOL_VERSION,
            "model": [each.name for each in state.openai_serving_models.base_model_paths],
            "config": asdict(config),
            "limits": config.limits().model_dump(),
            "splittable_tokenizer": segmenter.splittable,
            "engine": workers,
        }

    return router


def check_key(raw_request: Request) -> None:
    """Refuse a request without a valid key; vLLM's own check covers only paths such as `/v1`.

    Raises:
        HTTPException: 401.
    """
    from vllm import envs
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    args = raw_request.app.state.args
    tokens = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
    if tokens and not AuthenticationMiddleware(raw_request.app, tokens).verify_token(raw_request.headers):
        raise HTTPException(401, detail="Unauthorized")


async def _ask_workers(client: Any) -> dict[str, Any]:
    """What the worker extension says, of all workers; an `unavailable` entry where it cannot be asked."""
    try:
        answers = await asyncio.wait_for(client.collective_rpc("tokendance_status"), _ENGINE_TIMEOUT_S)
    except Exception as error:
        logger.debug("tokendance_status failed", exc_info=True)
        return {"unavailable": f"{type(error).__name__}: {error}"[:300]}
    return merge_workers(answers)


def merge_workers(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One answer of several workers: the first one that refuses reuse, since then nothing is reused, or the first.

    Families are the scheduler's, so every worker knows the same ones; `store` is the answering worker's own.
    """
    if not answers:
        return {"unavailable": "no worker answered"}
    refusing = next((each for each in answers if not each["reuse"]), answers[0])
    return {**refusing, "workers": len(answers)}


def _own_version() -> str:
    try:
        return version("tokendance")
    except PackageNotFoundError:
        from tokendance_sdk import __version__

        return __version__
