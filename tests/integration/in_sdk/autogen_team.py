"""A `BroadcastGroupChat` against a real server, run where AutoGen is installed; prints one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from tokendance_sdk.integrations.autogen import BroadcastGroupChat, TokenDanceChatCompletionClient
from tokendance_sdk.results import RoundResult


async def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--base-url", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--agents", type=int, default=3)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--max-tokens", type=int, default=8)
    options.add_argument("--fidelity", default="balanced")
    options.add_argument("--village", default="Hobbs", help="another one: nothing is in the prefix cache")
    options.add_argument("--news", type=int, default=8, help="sentences that all hear")
    options.add_argument("--stream", action="store_true")
    args = options.parse_args()

    seen: list[RoundResult] = []
    client = TokenDanceChatCompletionClient(
        model=args.model, base_url=args.base_url, api_key="none", max_tokens=args.max_tokens, temperature=0
    )
    people: list[Any] = [
        AssistantAgent(
            f"agent_{n}",
            model_client=client,
            system_message=f"In {args.village} you are number {n}.",
            model_client_stream=args.stream,
        )
        for n in range(args.agents)
    ]
    team = BroadcastGroupChat(
        people, max_turns=args.rounds, on_round=seen.append, fidelity=args.fidelity, patience=None
    )
    texts: dict[str, list[str]] = {}
    chunks: dict[str, str] = {}
    news = (
        "The mayor said that the Valentine's party at the cafe begins at five on the fourteenth. " * args.news
    )
    async for item in team.run_stream(task=news):
        if isinstance(item, ModelClientStreamingChunkEvent):
            chunks[item.source] = chunks.get(item.source, "") + item.content
        elif isinstance(item, TextMessage) and item.source != "user":
            texts.setdefault(item.source, []).append(item.content)
    rounds = [
        {
            "round_id": result.round_id,
            "plain": result.plain,
            "answers": len(result.outputs),
            "groups": sorted({member.group_size for member in result.report.members}),
            "reused": result.report.totals.reused_tokens,
            "prompt": result.report.totals.prompt_tokens,
        }
        for result in seen
    ]
    print(json.dumps({"rounds": rounds, "texts": texts, "chunks": chunks}))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
