"""Three AutoGen agents answer at once, hear each other, and answer again: one request a round.

    pip install "tokendance[autogen]"
    python examples/autogen_villagers.py --base-url http://localhost:8000/v1

Works with any OpenAI-compatible server; on vLLM with TokenDance what all have heard is computed once per round.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import TextMessage
from openai import OpenAI
from tokendance_sdk.integrations.autogen import BroadcastGroupChat, TokenDanceChatCompletionClient

VILLAGERS = {
    "isabella": "You are Isabella Rodriguez. You own a cafe and plan a Valentine's Day party.",
    "klaus": "You are Klaus Mueller. You study sociology and write a paper on gentrification.",
    "maria": "You are Maria Lopez. You study physics and stream games.",
}


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--api-key", default="none")
    options.add_argument("--model", help="default: the first one the server has")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--max-tokens", type=int, default=128)
    args = options.parse_args()

    model = args.model or OpenAI(base_url=args.base_url, api_key=args.api_key).models.list().data[0].id
    client = TokenDanceChatCompletionClient(
        model=model, base_url=args.base_url, api_key=args.api_key, max_tokens=args.max_tokens, temperature=0
    )
    people: list[Any] = [
        AssistantAgent(name, model_client=client, system_message=text) for name, text in VILLAGERS.items()
    ]
    team = BroadcastGroupChat(
        people,
        max_turns=args.rounds,
        termination_condition=TextMentionTermination("TERMINATE"),
        on_round=lambda result: print(result.report),
    )
    async for item in team.run_stream(task="Tell the others what you plan for this week."):
        if isinstance(item, TextMessage):
            print(f"{item.source}: {item.content.strip()}")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
