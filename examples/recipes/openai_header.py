"""The OpenAI client: a header names the round, `<TTSEP>` stands around shared text. Nothing to install but openai.

    python examples/recipes/openai_header.py --base-url http://localhost:8000/v1

Prints one JSON line for each agent: its answer, and what the server reused for it.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

AGENTS = {"isabella": "You own a cafe.", "klaus": "You study sociology.", "maria": "You study physics."}
NEWS = "The mayor said that the Valentine's party at Hobbs Cafe begins at five on the fourteenth. " * 12


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--round-id", default="recipe-openai:0")
    args = options.parse_args()
    client = OpenAI(base_url=args.base_url, api_key="none")
    model = client.models.list().data[0].id

    def speak(agent: str) -> str:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"{AGENTS[agent]}\n<TTSEP>{NEWS}<TTSEP>\nWhat do you do?"}],
            max_tokens=16,
            temperature=0,
            extra_headers={
                "X-TokenDance-Round-Id": args.round_id,
                "X-TokenDance-Agent-Id": agent,
                "X-TokenDance-Round-Size": str(len(AGENTS)),
            },
        )
        report = (answer.model_extra or {}).get("tokendance")
        return json.dumps({"agent": agent, "text": answer.choices[0].message.content, "report": report})

    with ThreadPoolExecutor(len(AGENTS)) as pool:
        print(*pool.map(speak, AGENTS), sep="\n")


if __name__ == "__main__":
    main()
