"""A recorded workload as a LangGraph graph: every superstep is one round, run by `RoundBroadcaster.node`.

The graph is what an application would write. Only its outputs are the recorded ones, so that every server is given
the same prompts, as in `replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from tokendance_sdk.blocks import Block
from tokendance_sdk.integrations.langgraph import Output, RoundBroadcaster
from tokendance_sdk.prompt import DEFAULT_LABEL
from tokendance_sdk.replay import Replay, ReplayError, RoundRow, Settings, new_session
from tokendance_sdk.workload import Workload, WorkloadAgent

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from tokendance_sdk.results import RoundResult


class Story(TypedDict):
    """The state between two rounds. Agents go by their wire ids.

    Attributes:
        histories: agent -> its system message, then private text; each round adds to its end.
        outputs: what was said in the last round; without a reducer, so each round's replace the one before.
        task: the next round's, None without one.
    """

    histories: dict[str, list[Any]]
    outputs: list[Output]
    task: str | None


def beginning(workload: Workload) -> Story:
    """The state before round 0: seed histories, nothing said."""
    histories = {workload.wire_ids[agent.id]: _seed(agent) for agent in workload.agents}
    return Story(histories=histories, outputs=[], task=workload.rounds[0].task or None)


def story_graph(workload: Workload, broadcaster: RoundBroadcaster) -> Any:
    """A compiled graph of one node that runs `workload` from `beginning` to its last round.

    Members that fail are skipped; the broadcaster's `on_round` sees every result.
    """

    def go_on(state: Story, said: list[Output]) -> Mapping[str, Any]:
        t = _number(state["outputs"])
        played, wire = workload.rounds[t], workload.wire_ids
        recorded = [
            Output(round_id=f"{workload.name}:{t}", round=t, agent=wire[agent], text=text)
            for agent, text in played.outputs.items()
        ]
        remembered = {
            wire[agent]: [played.private.get(agent, ""), played.own[agent]] for agent in workload.agent_ids
        }
        histories = {
            who: [*history, *filter(None, remembered[who])] for who, history in state["histories"].items()
        }
        following = workload.rounds[t + 1].task if t + 1 < len(workload.rounds) else None
        return Story(histories=histories, outputs=recorded, task=following or None)

    def another(state: Story) -> str:
        return "round" if _number(state["outputs"]) < len(workload.rounds) else END

    graph = StateGraph(Story)
    graph.add_node("round", broadcaster.node(on_failure="skip", update=go_on))
    graph.add_edge(START, "round")
    graph.add_conditional_edges("round", another, ["round", END])
    return graph.compile(checkpointer=InMemorySaver())


async def play_graph(
    client: AsyncOpenAI,
    workload: Workload,
    settings: Settings | None = None,
    *,
    model: str,
    on_round: Callable[[RoundRow], None] | None = None,
) -> Replay:
    """Play `workload` as `replay` does, with the same prompts, through `story_graph`.

    Raises:
        ReplayError: the settings' context is not `window`, which is all that the node shares.
        openai.OpenAIError: a round as a whole was refused. Failures of single members are in the rows.
    """
    how = settings or Settings()
    if how.context != "window":
        raise ReplayError(f"context is {how.context!r}; allowed in a graph: 'window'")
    names = {wire: agent for agent, wire in workload.wire_ids.items()}
    rows: list[RoundRow] = []
    plain: list[bool] = []

    def note(result: RoundResult) -> None:
        plain.append(result.plain)
        rows.append(RoundRow.of(len(rows), result))
        if on_round is not None:
            on_round(rows[-1])

    def label(block: Block) -> str:
        return DEFAULT_LABEL.replace("{owner}", names[block.owner or ""])

    broadcaster = RoundBroadcaster(
        client=client, model=model, layout=how.layout, label=label, on_round=note, **how.fields()
    )
    config = {
        "configurable": {"thread_id": new_session(workload)},
        "recursion_limit": len(workload.rounds) + 1,
    }
    await story_graph(workload, broadcaster).ainvoke(beginning(workload), config)
    return Replay.of(workload, how, rows, model=model, plain=any(plain), through="LangGraph")


def _number(said: list[Output]) -> int:
    """The round that follows the last one's outputs."""
    return said[-1]["round"] + 1 if said else 0


def _seed(agent: WorkloadAgent) -> list[Any]:
    system = [{"role": "system", "content": agent.system}] if agent.system else []
    return [*system, *filter(None, agent.history)]
