"""A `Broadcast` of AG2 agents against a real server, run where AG2 is installed; prints one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json

from ag2 import Agent
from ag2.events import ModelMessageChunk
from tokendance_sdk.integrations.ag2 import Broadcast, TokenDanceConfig
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
    config = TokenDanceConfig(
        args.model,
        base_url=args.base_url,
        api_key="none",
        max_tokens=args.max_tokens,
        temperature=0,
        streaming=args.stream,
    )
    names = [f"agent_{n}" for n in range(args.agents)]
    broadcast = Broadcast(
        [Agent(name, prompt=f"In {args.village} you are {name}.", config=config) for name in names],
        on_round=seen.append,
        fidelity=args.fidelity,
        patience=None,
    )
    chunks: dict[str, str] = dict.fromkeys(names, "")
    for name in names:

        def hear(event: ModelMessageChunk, name: str = name) -> None:
            chunks[name] += event.content

        broadcast.stream(name).where(ModelMessageChunk).subscribe(hear)
    news = (
        "The mayor said that the Valentine's party at the cafe begins at five on the fourteenth. " * args.news
    )
    done = await broadcast.run(news, rounds=args.rounds)
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
    texts = {name: [replies.outputs[name] for replies in done] for name in names}
    print(json.dumps({"rounds": rounds, "texts": texts, "chunks": {k: v for k, v in chunks.items() if v}}))


if __name__ == "__main__":
    asyncio.run(main())
