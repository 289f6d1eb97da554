"""`POST /tokendance/v1/release`: a session is over; forget its master and its members' histories."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tokendance_sdk.protocol import ID_PATTERN, ID_RULE, RELEASE_PATH

from tokendance_engine.frontend.status_api import check_key

_ENGINE_TIMEOUT_S = 30.0


class Release(BaseModel):
    """Which session to forget."""

    model_config = ConfigDict(extra="forbid")

    session_id: str
    cache_salt: str = Field(default="", description="The tenant's salt, as its requests carry it.")

    @field_validator("session_id")
    @classmethod
    def _id(cls, value: str) -> str:
        if not ID_PATTERN.fullmatch(value):
            raise ValueError(f"got {value[:140]!r}; allowed: {ID_RULE}")
        return value


def release_router() -> APIRouter:
    """The route, guarded by the server's API keys like every `/v1` route."""
    router = APIRouter()

    @router.post(RELEASE_PATH)
    async def release(raw_request: Request) -> dict[str, Any]:
        check_key(raw_request)
        try:
            wanted = Release.model_validate_json(await raw_request.body())
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(400, detail=f"{where}: {first['msg']}") from None
        client = raw_request.app.state.engine_client
        answers = await asyncio.wait_for(
            client.collective_rpc("tokendance_release", args=(wanted.cache_salt, wanted.session_id)),
            _ENGINE_TIMEOUT_S,
        )
        return {"session_id": wanted.session_id, "released": any(answers)}

    return router
