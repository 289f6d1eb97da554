"""What the scheduler half tells the metrics about rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokendance_sdk.protocol import MemberReport

from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import WorkerReport
from tokendance_engine.observe.metrics import Record, Recorder

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

_SOURCE = "scheduler"


def page_bytes(config: KVCacheConfig) -> int:
    """Bytes of one page over all layers of one worker."""
    return sum(len(g.layer_names) * int(g.kv_cache_spec.page_size_bytes) for g in config.kv_cache_groups)


class RoundStats:
    """Counts and times of rounds.

    Args:
        page_bytes: of one page, over all layers and workers.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._recorder = Recorder()

    def gathered(self, members: Sequence[Member]) -> None:
        """A group goes."""
        if members:
            self._recorder.observe("group_size", members[0].group_size)
        for member in members:
            self._recorder.observe("gather_seconds", member.gathered_ms / 1e3)

    def worked(self, report: WorkerReport) -> None:
        """The workers filled the pages of a step's members; all of them were told the same times."""
        for restore, compute in list(report.done.values())[:1]:
            self._recorder.observe("restore_seconds", restore / 1e3)
            self._recorder.observe("compute_seconds", compute / 1e3)

    def filled(self, member: Member) -> None:
        """A member's pages were confirmed."""
        if member.own_point is not None and member.preparation is not None:
            first = max(member.preparation.cached, member.own_point.page)
            self._recorder.count("approximate_pages", max(0, len(member.preparation.table) - first))

    def ended(self, report: MemberReport, seated: bool) -> None:
        """A member's answer ended, or its client went away; tokens count once vLLM had seated it."""
        self._recorder.count("members", label=report.placement or "none")
        if report.fallback_reason is not None:
            self._recorder.count("fallbacks", label=report.fallback_reason)
        if not seated:
            return
        kinds = {
            "cached": report.cached_tokens - report.restored_tokens,
            "restored": report.restored_tokens,
            "reused": report.reused_tokens,
            "recomputed": report.recomputed_tokens,
            "fresh": report.fresh_tokens,
        }
        for kind, n in kinds.items():
            self._recorder.count("tokens", n, kind)

    def holds(self, families: Sequence[dict[str, Any]]) -> None:
        """What the live families hold now (`Families.snapshot`)."""
        self._recorder.level("families", len(families), _SOURCE)
        pages = sum(family["pages"] for family in families)
        self._recorder.level("master_bytes", pages * self._page_bytes, _SOURCE)

    def take(self) -> Record | None:
        """What happened since it was last taken, or None."""
        return self._recorder.take()
