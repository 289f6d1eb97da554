"""Three villagers talk for three rounds: a LangGraph graph whose node runs all of them as one round.

    pip install "tokendance[langgraph]"
    python examples/langgraph_villagers.py --base-url http://localhost:8000/v1

Works with any OpenAI-compatible server; on vLLM with TokenDance the shared text is computed once per round.
"""

from __future__ import annotations

import argparse
import uuid
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from openai import OpenAI
from tokendance_sdk.integrations.langgraph import Output, RoundBroadcaster, keep_once
from tokendance_sdk.results import RoundResult


class Village(TypedDict):
    histories: dict[str, str]
    outputs: Annotated[list[Output], keep_once]
    task: str


VILLAGERS = {
    "isabella": "You are Isabella Rodriguez. You own a cafe and plan a Valentine's Day party.",
    "klaus": "You are Klaus Mueller. You study sociology and write a paper on gentrification.",
    "maria": "You are Maria Lopez. You study physics and stream games.",
}


def show(result: RoundResult) -> None:
    for answer in result:
        print(f"{answer.agent_id}: {answer.text.strip()}")
    print(result.report)


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
    broadcaster = RoundBroadcaster(
        client=client, model=model, on_round=show, max_tokens=args.max_tokens, temperature=0
    )

    def another(state: Village) -> str:
        return "round" if state["outputs"][-1]["round"] + 1 < args.rounds else END

    graph = StateGraph(Village)
    graph.add_node("round", broadcaster.node())
    graph.add_edge(START, "round")
    graph.add_conditional_edges("round", another, ["round", END])
    village = graph.compile(checkpointer=InMemorySaver())
    village.invoke(
        {"histories": VILLAGERS, "outputs": [], "task": "Tell the others what you plan for this week."},
        {"configurable": {"thread_id": f"village-{uuid.uuid4().hex[:8]}"}},
    )


if __name__ == "__main__":
    main()
