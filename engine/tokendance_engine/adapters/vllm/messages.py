"""What the two halves of the connector tell each other in every engine step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from tokendance_engine.adapters.vllm.mirror_jobs import MirrorReport, MirrorWork
from tokendance_engine.reuse.judge import Verdict
from tokendance_engine.reuse.ports import MasterJob, MemberJob


@dataclass(frozen=True, slots=True)
class Shifts:
    """Positions of a forward pass that differ from the tokens' indices.

    Attributes:
        scheduled: request id -> tokens in the pass, of all requests.
        pieces: request id -> (tokens, shift) in order, of the requests that are shifted.
    """

    scheduled: dict[str, int]
    pieces: dict[str, list[tuple[int, int]]]


@dataclass
class StepMeta(KVConnectorMetadata):
    """Scheduler to worker: the step's work, masters first.

    Attributes:
        masters, members: jobs, in execution order.
        shifts: where tokens of the step's forward pass do not stand at their index.
        families: live families for the status route, when they changed.
        mirrors: what to do with stored histories, if anything.
    """

    masters: list[MasterJob] = field(default_factory=list)
    members: list[MemberJob] = field(default_factory=list)
    shifts: Shifts | None = None
    families: list[dict[str, Any]] | None = None
    mirrors: MirrorWork | None = None

    def is_empty(self) -> bool:
        """No work of ours."""
        return not (self.masters or self.members or self.mirrors)


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker to scheduler: what came of it.

    Attributes:
        gate: `(reason,)` once after start; reason None means reuse is on.
        shifts: with `gate`: whether positions of the forward pass can be shifted.
        done: request id -> (restore, compute) milliseconds of its group, of members whose pages are filled.
        verdicts: request id -> what a backend did that had to be asked here.
        failed: members whose pages are not.
        broken_masters: masters that could not be computed.
        mirrors: what came of stored histories.
    """

    gate: tuple[str | None] | None = None
    shifts: bool = True
    done: dict[str, tuple[float, float]] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    broken_masters: list[int] = field(default_factory=list)
    mirrors: MirrorReport = field(default_factory=MirrorReport)

    def is_empty(self) -> bool:
        """Nothing to say."""
        nothing = not (self.done or self.failed or self.broken_masters)
        return self.gate is None and nothing and self.mirrors.is_empty()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merge the reports of two workers: done is what both did, any fault counts, and of each time the longest."""
        assert isinstance(other, WorkerReport)
        reasons = [r.gate[0] for r in (self, other) if r.gate and r.gate[0]]
        gate = (reasons[0],) if reasons else self.gate or other.gate
        done = {}
        for key in self.done.keys() & other.done.keys():
            (restore, compute), (restore_too, compute_too) = self.done[key], other.done[key]
            done[key] = (max(restore, restore_too), max(compute, compute_too))
        return WorkerReport(
            gate,
            self.shifts and other.shifts,
            done,
            {**other.verdicts, **self.verdicts},
            sorted({*self.failed, *other.failed, *(self.done.keys() ^ other.done.keys())}),
            sorted({*self.broken_masters, *other.broken_masters}),
            self.mirrors.aggregate(other.mirrors),
        )
