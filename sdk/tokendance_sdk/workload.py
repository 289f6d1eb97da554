"""Recorded multi-agent scenarios (`tokendance.workload/1`): reading them, and their agents' prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokendance_sdk.blocks import Block
from tokendance_sdk.errors import TokenDanceError
from tokendance_sdk.layout import Layout
from tokendance_sdk.prompt import RoundPrompt

if TYPE_CHECKING:
    from tokendance_sdk.workload_cut import Cut

SCHEMA = "tokendance.workload/1"

_NOT_WIRE = re.compile(r"[^A-Za-z0-9.-]+")

Context = Literal["window", "transcript"]
"""What a prompt shares: outputs of the round before (`window`), or of all rounds before (`transcript`)."""


class WorkloadError(TokenDanceError, ValueError):
    """A workload file is missing or broken; the message names file, line and what is allowed."""


@dataclass(frozen=True, slots=True)
class WorkloadAgent:
    """One agent; `system` and `history` are private to it."""

    id: str
    system: str
    history: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadRound:
    """One round: the task given to everybody, and what each agent produced.

    Attributes:
        outputs: agent -> non-empty text, in agent order; the shared blocks of the next round.
        private: agent -> text that only it sees (thoughts, scratchpad); agents may be missing.
        own: agent -> its output as it stands in its own later history (a cut may shorten or empty it).
        carried: agents whose output repeats an older line.
    """

    index: int
    task: str
    outputs: Mapping[str, str]
    private: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    speaking_order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A scenario as read, or as cut by `workload_cut.cut` (then `cut` says how)."""

    name: str
    title: str
    kind: str
    language: str
    source: Any
    licence: str
    assembly: str
    agents: tuple[WorkloadAgent, ...]
    rounds: tuple[WorkloadRound, ...]
    cut: Cut | None = None

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Ids in file order."""
        return tuple(agent.id for agent in self.agents)

    @property
    def wire_ids(self) -> dict[str, str]:
        """Agent id -> id on the wire, where names of people are not allowed; distinct, the same every time."""
        ids: dict[str, str] = {}
        for place, agent in enumerate(self.agent_ids):
            plain = _NOT_WIRE.sub("_", agent)[:100]
            ids[agent] = plain if plain.strip("_") and plain not in ids.values() else f"{plain}:{place}"
        return ids

    def shared(self, t: int, context: Context = "window") -> list[Block]:
        """The shared blocks of round `t` in canonical order: one per agent and round; none in round 0."""
        first = 0 if context == "transcript" else max(0, t - 1)
        return [Block(text, owner) for past in self.rounds[first:t] for owner, text in past.outputs.items()]

    def private_history(self, agent: WorkloadAgent, t: int, context: Context = "window") -> list[str]:
        """What only `agent` sees in round `t`; each round adds to its end and changes nothing before.

        A transcript holds the agent's own outputs already, so they are private history in a window only.
        """
        pieces = list(agent.history)
        for past in self.rounds[:t]:
            pieces.append(past.private.get(agent.id, ""))
            if context == "window":
                pieces.append(past.own[agent.id])
        return [piece for piece in pieces if piece]

    def prompt(
        self, agent: WorkloadAgent, t: int, *, context: Context = "window", layout: Layout | None = None
    ) -> RoundPrompt:
        """The prompt of `agent` in round `t`: system, private history, shared blocks by `layout`, task.

        Labels and layouts see the agents' names; the prompt itself goes under the agent's wire id.

        Raises:
            WorkloadError: there is no round `t`.
        """
        if not 0 <= t < len(self.rounds):
            raise WorkloadError(
                f"workload {self.name!r} has no round {t}; allowed: 0 to {len(self.rounds) - 1}"
            )
        prompt = RoundPrompt.assemble(
            agent.id,
            self.private_history(agent, t, context),
            self.shared(t, context),
            layout,
            self.rounds[t].task or None,
            system=agent.system or None,
        )
        return replace(prompt, agent=self.wire_ids[agent.id])


def find_workload(name: str | Path) -> Path:
    """The file of a workload given by path, or by name from `benchmarks/workloads` (here or in the checkout).

    Raises:
        WorkloadError: there is none; the message lists the known names.
    """
    given = Path(name)
    if given.is_file():
        return given
    for folder in _folders():
        if (found := folder / f"{name}.jsonl").is_file():
            return found
    raise WorkloadError(
        f"no workload {str(name)!r}; allowed: a .jsonl file, or one of: "
        f"{', '.join(known_workloads()) or '(none found here)'}"
    )


def known_workloads() -> list[str]:
    """Names that `find_workload` knows."""
    return sorted({file.stem for folder in _folders() for file in folder.glob("*.jsonl")})


def _folders() -> list[Path]:
    return [Path("benchmarks/workloads"), Path(__file__).resolve().parents[2] / "benchmarks" / "workloads"]


def load_workload(name: str | Path) -> Workload:
    """Read and check a workload file, given by path or name.

    Raises:
        WorkloadError: no such file, or a line breaks the schema.
    """
    path = find_workload(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"cannot read {path}: {error}") from error
    return parse_workload(lines, str(path))


def parse_workload(lines: list[str], where: str) -> Workload:
    """Check the lines of a workload and put them together; `where` names them in errors.

    Raises:
        WorkloadError: a line breaks the schema.
    """
    records = [
        (f"{where}:{n}", _record(line, f"{where}:{n}")) for n, line in enumerate(lines, 1) if line.strip()
    ]
    if not records:
        raise WorkloadError(f"{where} is empty; expected a header with schema {SCHEMA!r}")
    here, head = records[0]
    if head.get("schema") != SCHEMA:
        raise WorkloadError(f"{here}: schema is {head.get('schema')!r}; allowed: {SCHEMA!r}")
    agents = tuple(_agent(record, at) for at, record in records if record.get("kind") == "agent")
    ids = [agent.id for agent in agents]
    if ids != _field(head, "agents", list, here) or len(set(ids)) != len(ids):
        raise WorkloadError(
            f"{here}: header names agents {head['agents']!r}, the lines {ids!r}; they must be equal"
        )
    rounds = tuple(_round(record, ids, at) for at, record in records if record.get("kind") == "round")
    if [r.index for r in rounds] != list(range(_field(head, "rounds", int, here))):
        raise WorkloadError(
            f"{here}: header says {head['rounds']} rounds, the lines have {[r.index for r in rounds]}; "
            "expected 0, 1, ... in order"
        )
    strange = [at for at, record in records[1:] if record.get("kind") not in ("agent", "round")]
    if strange:
        raise WorkloadError(f"{strange[0]}: unknown kind of line; allowed: 'agent', 'round'")
    return Workload(
        **{
            key: _field(head, key, str, here)
            for key in ("name", "title", "kind", "language", "licence", "assembly")
        },
        source=head.get("source"),
        agents=agents,
        rounds=rounds,
    )


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise WorkloadError(f"{where}: got {type(record).__name__}; allowed: one JSON object a line")
    return record


def _field(record: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = record.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WorkloadError(f"{where}: {key!r} is {str(value)[:80]!r}; expected {kind.__name__}")
    return value


def _agent(record: Mapping[str, Any], where: str) -> WorkloadAgent:
    history = _field(record, "history", list, where)
    if not all(isinstance(block, str) for block in history):
        raise WorkloadError(f"{where}: 'history' holds something else than text; expected a list of str")
    return WorkloadAgent(
        _field(record, "id", str, where), _field(record, "system", str, where), tuple(history)
    )


def _round(record: Mapping[str, Any], ids: list[str], where: str) -> WorkloadRound:
    outputs = _field(record, "outputs", dict, where)
    missing = [agent for agent in ids if not isinstance(outputs.get(agent), str) or not outputs[agent]]
    if missing or len(outputs) != len(ids):
        raise WorkloadError(
            f"{where}: outputs of {sorted(outputs)} (empty: {missing}); expected a text of each of {ids}"
        )
    ordered = {agent: outputs[agent] for agent in ids}
    private = record.get("private") or {}
    if not isinstance(private, dict) or not all(
        k in outputs and isinstance(v, str) for k, v in private.items()
    ):
        raise WorkloadError(f"{where}: 'private' of {list(private)}; expected text of some of {ids}")
    named = {key: tuple(record.get(key) or ()) for key in ("carried", "speaking_order")}
    for key, names in named.items():
        if not set(names) <= set(ids):
            raise WorkloadError(f"{where}: {key!r} names {sorted(set(names) - set(ids))}; allowed: {ids}")
    index, task = _field(record, "index", int, where), _field(record, "task", str, where)
    return WorkloadRound(index, task, ordered, private, ordered, named["carried"], named["speaking_order"])
