"""AutoGen (AgentChat 0.7): a model client whose calls join rounds, and a team that speaks in rounds.

client = TokenDanceChatCompletionClient(model="m", base_url="http://localhost:8000/v1", api_key="none")
team = BroadcastGroupChat(
    [AssistantAgent(name, model_client=client, system_message=text) for name, text in people.items()],
    termination_condition=MaxMessageTermination(10),
)
await team.run(task="Plan the party.")
"""

from __future__ import annotations

from tokendance_sdk.integrations.autogen.client import TokenDanceChatCompletionClient
from tokendance_sdk.integrations.autogen.team import BroadcastGroupChat, BroadcastGroupChatConfig

__all__ = ["BroadcastGroupChat", "BroadcastGroupChatConfig", "TokenDanceChatCompletionClient"]
