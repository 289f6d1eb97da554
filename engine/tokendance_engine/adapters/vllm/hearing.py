"""What the worker half says about a step, taken in by the scheduler half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokendance_sdk.protocol import FallbackReason, PlacementReason

from tokendance_engine.adapters.vllm.intake import Intake
from tokendance_engine.adapters.vllm.letting_go import LettingGo
from tokendance_engine.adapters.vllm.masters import Families
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import WorkerReport
from tokendance_engine.adapters.vllm.mirror_scheduler import Mirrors
from tokendance_engine.adapters.vllm.placement import Placement
from tokendance_engine.adapters.vllm.round_stats import RoundStats
from tokendance_engine.adapters.vllm.step_work import StepWork


@dataclass(frozen=True, slots=True)
class Hearing:
    """Everything that a report can concern.

    Attributes:
        members: those in the engine, by request.
        work: what was handed out and not answered yet.
        page_size: tokens per page.
    """

    members: Mapping[str, Member]
    work: StepWork
    families: Families
    letting_go: LettingGo
    intake: Intake
    placement: Placement
    mirrors: Mirrors
    stats: RoundStats
    page_size: int

    def hear(self, report: WorkerReport) -> None:
        """Publish what was filled, settle members whose work failed, and retire masters that broke."""
        self.mirrors.hear(report.mirrors)
        if report.gate is not None:
            self.intake.unsupported = self.intake.unsupported or report.gate[0]
            self.placement.unsupported = None if report.shifts else PlacementReason.UNSUPPORTED_RUNNER
        broken = {*report.broken_masters, *report.mirrors.broken}
        for master_id in broken:
            family = self.families.find(master_id)
            if family is not None:
                self.families.retire(family)
        self.stats.worked(report)
        for request_id, times in report.done.items():
            self._filled(request_id, times, report)
        for request_id in report.failed:
            member = self.members.get(request_id)
            if self.work.answered(request_id) and member is not None:
                self.letting_go.settle(member, FallbackReason.WORKER_ERROR)
        for member in self.members.values():
            if member.master is not None and member.master.id in broken:
                self.letting_go.settle(member, FallbackReason.WORKER_ERROR)

    def _filled(self, request_id: str, times: tuple[float, float], report: WorkerReport) -> None:
        member = self.members.get(request_id)
        if self.work.answered(request_id) and member is not None and member.preparation is not None:
            member.preparation.publish(self.families.pool, member.request.block_hashes, self.page_size)
            member.ready, member.times = True, times
            self.stats.filled(member)
            member.verdict = report.verdicts.get(request_id, member.verdict)
