"""LangChain's ChatOpenAI: the tag goes into `extra_body`, `<TTSEP>` stands around shared text.

    pip install langchain-openai
    python examples/recipes/chat_openai.py --base-url http://localhost:8000/v1

Prints one JSON line for each agent: its answer, and how many of its prompt's tokens were not computed.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr

AGENTS = {"isabella": "You own a cafe.", "klaus": "You study sociology.", "maria": "You study physics."}
NEWS = "Everybody in the village has heard that the party at Hobbs Cafe is on the fourteenth. " * 12


async def speak(base_url: str, model: str, round_id: str, agent: str) -> str:
    tag = {"round_id": round_id, "agent_id": agent, "round_size": len(AGENTS)}
    chat = ChatOpenAI(
        base_url=base_url,
        api_key=SecretStr("none"),
        model=model,
        temperature=0,
        extra_body={"tokendance": tag, "max_tokens": 16},
    )
    answer = await chat.ainvoke(f"{AGENTS[agent]}\n<TTSEP>{NEWS}<TTSEP>\nWhat do you do?")
    usage = answer.usage_metadata
    cached = (usage.get("input_token_details") or {}).get("cache_read", 0) if usage else 0
    return json.dumps({"agent": agent, "text": answer.content, "cached_tokens": cached})


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--round-id", default="recipe-chatopenai:0")
    args = options.parse_args()
    model = OpenAI(base_url=args.base_url, api_key="none").models.list().data[0].id
    print(*await asyncio.gather(*(speak(args.base_url, model, args.round_id, a) for a in AGENTS)), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
