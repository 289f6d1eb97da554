"""AG2's OpenAI config, for clients whose calls become members of the round they are made in."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace
from typing import Any

from ag2.config import OpenAIConfig
from ag2.config.openai.openai_client import OpenAIClient
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tokendance_sdk.joining import joining

_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()


class TokenDanceConfig(OpenAIConfig):
    """`OpenAIConfig`, with its arguments, for the agents of a `Broadcast`.

    An agent's first call of a round goes out with the round's one request, later ones (its tools) alone and tagged.
    Outside a broadcast it is the ordinary config. Without an `http_client` of its own it shares the connections of
    all such configs in the running event loop: AG2 makes a client for every turn.
    """

    def create(self) -> OpenAIClient:
        """A client for one turn; needs a running event loop."""
        http_client = self.http_client or _shared_connections()
        client = OpenAIConfig.create(replace(self, http_client=http_client))
        own: AsyncOpenAI = client._client
        client._client = joining(own)
        return client


def _shared_connections() -> Any:
    loop = asyncio.get_running_loop()
    if loop not in _connections:
        _connections[loop] = DefaultAsyncHttpxClient()
    return _connections[loop]
