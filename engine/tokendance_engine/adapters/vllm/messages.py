"""What the two halves of the connector tell each other in every engine step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from tokendance_engine.reuse.ports import MasterJob, MemberJob


@dataclass
class StepMeta(KVConnectorMetadata):
    """Scheduler to worker: the step's work, masters first.

    Attributes:
        masters, members: jobs, in execution order.
        lost: pages promised to vLLM that nobody will fill; reported as load errors.
        families: live families for the status route, when they changed.
    """

    masters: list[MasterJob] = field(default_factory=list)
    members: list[MemberJob] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    families: list[dict[str, Any]] | None = None

    def is_empty(self) -> bool:
        """Nothing to do."""
        return not (self.masters or self.members or self.lost)


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker to scheduler: what came of it.

    Attributes:
        gate: `(reason,)` once after start; reason None means reuse is on.
        times: request id -> (restore, compute) milliseconds of its group.
        failed: members whose load failed.
        broken_masters: masters that could not be computed.
    """

    gate: tuple[str | None] | None = None
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    broken_masters: list[int] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Nothing to say."""
        return self.gate is None and not (self.times or self.failed or self.broken_masters)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merge the reports of two workers: any fault counts, and of each time the longest."""
        assert isinstance(other, WorkerReport)
        reasons = [r.gate[0] for r in (self, other) if r.gate and r.gate[0]]
        gate = (reasons[0],) if reasons else self.gate or other.gate
        times = {**self.times, **other.times}
        for key in self.times.keys() & other.times.keys():
            (restore, compute), (restore_too, compute_too) = self.times[key], other.times[key]
            times[key] = (max(restore, restore_too), max(compute, compute_too))
        return WorkerReport(
            gate,
            times,
            sorted({*self.failed, *other.failed}),
            sorted({*self.broken_masters, *other.broken_masters}),
        )
