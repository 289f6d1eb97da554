"""Where in a graph a round, or a call of the chat model, stands: names that a retry and a resume find again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from tokendance_sdk.protocol import ID_PATTERN

RUN_KEY = "__tokendance_run"
"""Key under `configurable` by which a wrapped graph names a run that has no thread."""


@dataclass(frozen=True, slots=True)
class RoundPlace:
    """Where in a graph a round is: the same after a retry and after a resume.

    With a thread id, rounds are `thread:step`; a subgraph's have its place in the parent in between. Without one,
    the session is named after the agents and their histories, and the round after the task that runs it.
    """

    session_id: str
    round_id: str

    @classmethod
    def of(cls, config: RunnableConfig, histories: Mapping[str, Any]) -> RoundPlace:
        """From the config that LangGraph gives a node."""
        metadata = config.get("metadata", {})
        step = metadata.get("langgraph_step", 0)
        namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
        parent = namespace.rpartition("|")[0]
        thread = config.get("configurable", {}).get("thread_id")
        if thread is None:
            session = f"g.{digest(repr(sorted(histories.items())))}"
            return cls(session, f"{session}.{digest(namespace)}:{step}")
        session = valid_id(str(thread)) + (f":{digest(parent)}" if parent else "")
        return cls(session, f"{session}:{step}")


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a call of the chat model comes from.

    Attributes:
        superstep: calls with an equal one belong together: one step of the graph, whatever node or parallel
            subgraph they are in; empty outside a graph.
        session_id: the thread; without one, the run of a wrapped graph, or else `home`.
        round_id: `thread:step`; inside subgraphs the parent's checkpoint and the depth stand in between.
        agent: the node, with its place in a fan-out; subgraphs' nodes are `outer.inner`. Not unique in a round.
        order: sorts the members of a round, always the same way.
        started: when the node's first attempt began (Unix seconds); None where LangGraph does not say.
    """

    superstep: tuple[str, ...]
    session_id: str
    round_id: str
    agent: str
    order: tuple[str, ...] = ()
    started: float | None = None

    @classmethod
    def here(cls, home: str, metadata: Mapping[str, Any] | None = None) -> CallPlace | None:
        """The running node's, from the context variable that LangChain keeps; None outside a graph.

        Args:
            home: session of calls that have neither a thread nor a wrapped graph.
            metadata: stands in for the context's where there is none (a node's own threads).
        """
        config = var_child_runnable_config.get() or RunnableConfig()
        known: Mapping[str, Any] = config.get("metadata") or metadata or {}
        if "langgraph_step" not in known:
            return None
        return cls.of(known, config.get("configurable", {}), home)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], configurable: Mapping[str, Any], home: str) -> CallPlace:
        """From a node's metadata and its `configurable`."""
        namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
        levels = namespace.split("|")
        step, depth = str(metadata["langgraph_step"]), len(levels) - 1
        thread = configurable.get("thread_id", metadata.get("thread_id"))
        session = valid_id(str(thread)) if thread is not None else str(configurable.get(RUN_KEY, home))
        # Parallel subgraphs have namespaces of their own; what they have in common is the root's checkpoint.
        root = str((configurable.get("checkpoint_map") or {}).get("", "")) or levels[0]
        inside = f".{digest(root)}.{depth}" if depth else ""
        path = metadata.get("langgraph_path") or ()
        places = [str(part) for part in path if isinstance(part, int) and not isinstance(part, bool)]
        names = [level.partition(":")[0] for level in levels if not level.isdigit()]
        names[-1] = str(metadata.get("langgraph_node") or names[-1])
        info = getattr(configurable.get("__pregel_runtime"), "execution_info", None)
        return cls(
            superstep=(session, root, str(depth), step),
            session_id=session,
            round_id=f"{session}{inside}:{step}",
            agent=agent_id(".".join([*names, *places])),
            order=(*names, *(place.zfill(6) for place in places), namespace),
            started=getattr(info, "node_first_attempt_time", None),
        )


def digest(text: str) -> str:
    """Twelve hexadecimal digits that name `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def valid_id(text: str) -> str:
    """`text` where it is a valid id with room for what follows, otherwise its hash."""
    return text if ID_PATTERN.fullmatch(text) and len(text) <= 96 else f"t.{digest(text)}"


def agent_id(name: str) -> str:
    """A node's name as an agent id: what ids may not hold becomes `_`."""
    return re.sub(r"[^A-Za-z0-9._:-]", "_", name)[:96] or "agent"
