"""Three agents on a plain OpenAI client: the only addition is a header that names the round.

    python examples/openai_client.py --base-url http://localhost:8000/v1

Without a separator there is nothing to share by segment, so `<TTSEP>` stands around each shared text. On a
server without TokenDance the header has no effect; leave the separators out there (the SDK does both).
"""

from __future__ import annotations

import argparse
import json
import uuid
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

AGENTS = {
    "isabella": "You are Isabella Rodriguez. You own a cafe and plan a Valentine's Day party.",
    "klaus": "You are Klaus Mueller. You study sociology and write a paper on gentrification.",
    "maria": "You are Maria Lopez. You study physics and stream games.",
}
SEPARATOR = "<TTSEP>"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--base-url", default="http://localhost:8000/v1")
    options.add_argument("--api-key", default="none")
    options.add_argument("--model", help="default: the first one the server has")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--max-tokens", type=int, default=128)
    args = options.parse_args()

    client = OpenAI(base_url=args.base_url, api_key=args.api_key)
    model = args.model or client.models.list().data[0].id
    session = f"example-{uuid.uuid4().hex[:8]}"
    said = dict.fromkeys(AGENTS, "Hello everyone.")

    for number in range(args.rounds):
        heard = "".join(f"\n[{name}]\n{SEPARATOR}{text}{SEPARATOR}" for name, text in said.items())

        def speak(name: str, round_id: str, heard: str) -> tuple[str, str, object]:
            answer = client.chat.completions.create(
                model=model,
                messages=[
                    {"role": "system", "content": AGENTS[name]},
                    {
                        "role": "user",
                        "content": f"You hear:{heard}\n\nTell the others what you plan for this week.",
                    },
                ],
                max_tokens=args.max_tokens,
                temperature=0,
                extra_headers={"X-TokenDance-Round-Id": round_id, "X-TokenDance-Agent-Id": name},
            )
            report = (answer.model_extra or {}).get("tokendance")
            return name, answer.choices[0].message.content or "", report

        with ThreadPoolExecutor(len(AGENTS)) as pool:
            tasks = [pool.submit(speak, name, f"{session}:{number}", heard) for name in AGENTS]
            answers = [task.result() for task in tasks]
        print(f"--- round {number}")
        for name, text, report in answers:
            print(f"{name}: {text.strip()}\n  {json.dumps(report)}")
        # a model may spell the separator; as shared text it would be a boundary
        said = {name: text.replace(SEPARATOR, "TTSEP") for name, text, _ in answers}


if __name__ == "__main__":
    main()
