"""AG2 (1.x agents): a model config whose calls join rounds, and a broadcast that runs a list of agents in rounds.

config = TokenDanceConfig("m", base_url="http://localhost:8000/v1", api_key="none")
broadcast = Broadcast([Agent(name, prompt=text, config=config) for name, text in people.items()])
for _ in range(3):
    replies = await broadcast.round("Plan the party.")
"""

from __future__ import annotations

from tokendance_sdk.integrations.ag2.broadcast import Broadcast, BroadcastReplies
from tokendance_sdk.integrations.ag2.config import TokenDanceConfig

__all__ = ["Broadcast", "BroadcastReplies", "TokenDanceConfig"]
