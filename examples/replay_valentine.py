"""A recorded Valentine's Day of three generative agents, replayed round by round.

    python examples/replay_valentine.py --base-url http://localhost:8000/v1

The same from the command line: `tokendance replay ga-ville3-valentine`.
"""

from __future__ import annotations

import argparse
import asyncio

from openai import AsyncOpenAI
from tokendance_sdk.client import AsyncTokenDance
from tokendance_sdk.workload import load_workload


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--api-key", default="none")
    args = options.parse_args()

    story = load_workload("ga-ville3-valentine")
    async with AsyncOpenAI(base_url=args.base_url, api_key=args.api_key) as client:
        model = (await client.models.list()).data[0].id
        dance = AsyncTokenDance(client)
        for t in range(len(story.rounds)):
            prompts = [story.prompt(agent, t) for agent in story.agents]
            result = await dance.rounds.create(
                model=model, round_id=f"valentine:{t}", agents=prompts, max_tokens=32, temperature=0
            )
            print(result.report)


if __name__ == "__main__":
    asyncio.run(main())
