"""pydantic-ai, or any framework that takes an `AsyncOpenAI`: its agents' calls are gathered into one request.

    pip install tokendance "pydantic-ai-slim[openai]"
    python examples/recipes/pydantic_ai_agents.py --base-url http://localhost:8000/v1

No separators and no headers: `joining` finds the texts that the agents share. Prints one JSON line for each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import AbstractContextManager

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tokendance_sdk.joining import joining
from tokendance_sdk.results import RoundResult
from tokendance_sdk.series import RoundSeries

AGENTS = {"isabella": "You own a cafe.", "klaus": "You study sociology.", "maria": "You study physics."}
NEWS = "The mayor said that the Valentine's party at Hobbs Cafe begins at five on the fourteenth. " * 12


def show(result: RoundResult) -> None:
    reused = result.report.totals.reused_tokens
    print(json.dumps({"round": result.round_id, "outputs": result.outputs, "reused_tokens": reused}))


async def speak(agent: Agent, seat: AbstractContextManager[None], heard: list[str]) -> str:
    with seat:
        answer = await agent.run(heard, model_settings={"max_tokens": 16, "temperature": 0})
    return answer.output


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--session-id", default="recipe-pydantic-ai")
    options.add_argument("--rounds", type=int, default=2)
    args = options.parse_args()

    client = joining(AsyncOpenAI(base_url=args.base_url, api_key="none"))
    name = (await client.models.list()).data[0].id
    model = OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))
    agents = {who: Agent(model, system_prompt=text) for who, text in AGENTS.items()}
    series = RoundSeries(args.session_id, on_round=show)
    heard = [NEWS]
    for _ in range(args.rounds):
        opened = series.open(list(agents))
        heard = await asyncio.gather(
            *(speak(agent, opened.seat(who), heard) for who, agent in agents.items())
        )
        series.advance()


if __name__ == "__main__":
    asyncio.run(main())
