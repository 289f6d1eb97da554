"""Three AG2 agents answer at once, hear each other, and answer again: one request a round.

    pip install "tokendance[ag2]"
    python examples/ag2_villagers.py --base-url http://localhost:8000/v1

Works with any OpenAI-compatible server; on vLLM with TokenDance what all have heard is computed once per round.
"""

from __future__ import annotations

import argparse
import asyncio

from ag2 import Agent
from openai import OpenAI
from tokendance_sdk.integrations.ag2 import Broadcast, TokenDanceConfig

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
    config = TokenDanceConfig(
        model, base_url=args.base_url, api_key=args.api_key, max_tokens=args.max_tokens, temperature=0
    )
    village = Broadcast(
        [Agent(name, prompt=text, config=config) for name, text in VILLAGERS.items()],
        on_round=lambda result: print(result.report),
    )
    done = await village.run("Tell the others what you plan for this week.", rounds=args.rounds)
    for replies in done:
        for name, text in replies.outputs.items():
            print(f"{name}: {text.strip()}")


if __name__ == "__main__":
    asyncio.run(main())
