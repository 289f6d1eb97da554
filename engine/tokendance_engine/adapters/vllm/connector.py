"""The KV connector vLLM loads: a thin face over its scheduler half and its worker half.

vLLM creates one instance in the scheduler's process and one in every worker; they share nothing but the messages of
`messages.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.prometheus import TokenDanceProm, TokenDanceStats
from tokendance_engine.adapters.vllm.scheduler_side import SchedulerSide
from tokendance_engine.adapters.vllm.worker_side import WorkerSide
from tokendance_engine.config import EngineConfig

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


logger = init_logger("vllm.tokendance")

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(hook: Callable[P, R]) -> Callable[P, R | None]:
    """A fault in our books must not end vLLM's scheduler: log it, and let the request take vLLM's own path."""

    @functools.wraps(hook)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return hook(*args, **kwargs)
        except Exception:
            logger.exception("TokenDance: %s failed", hook.__name__)
            return None

    return guarded


class TokenDanceConnector(KVConnectorBase_V1):
    """TokenDance for unmodified vLLM (`kv_role="kv_both"`, `kv_load_failure_policy="recompute"`)."""

    worker_class: type[WorkerSide] = WorkerSide

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = EngineConfig.from_extra_config(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(vllm_config, settings, kv_cache_config)
        else:
            self.worker = self.worker_class(vllm_config, settings)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TokenDanceStats:
        return TokenDanceStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TokenDanceProm:
        return TokenDanceProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @_guarded
    def get_kv_connector_stats(self) -> TokenDanceStats | None:
        """What happened in this half since it was last asked; None if nothing did."""
        half = self.scheduler or self.worker
        record = half.take_stats() if half is not None else None
        return TokenDanceStats(record) if record is not None else None

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed to another engine, so a preempted request may simply finish."""
        return False

    # Scheduler half.

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind(kv_cache_manager)

    @_guarded
    def on_new_request(self, request: Request) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return (None if self._scheduler.hold(request, num_computed_tokens) else 0), False

    @_guarded
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._scheduler.seat(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.build_meta(scheduler_output)

    @_guarded
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        self._scheduler.hear(report if isinstance(report, WorkerReport) else None)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._finish(request, block_ids) or (False, None)

    @_guarded
    def _finish(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.finish(request, block_ids)

    def has_pending_block_frees(self) -> bool:
        """Pages that wait to be captured come free in the next step: no reason to preempt anybody."""
        return bool(self._scheduler.mirrors.captures.pending)

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset()

    # Worker half.

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        # Here and not in `start_load_kv`, which vLLM calls after the forward pass of a step that loads nothing.
        if isinstance(connector_metadata, StepMeta):
            self._worker.run(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self._worker.take_captured(), None

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._worker.take_report()

    @property
    def _scheduler(self) -> SchedulerSide:
        assert self.scheduler is not None, "a scheduler hook was called in a worker"
        return self.scheduler

    @property
    def _worker(self) -> WorkerSide:
        assert self.worker is not None, "a worker hook was called in the scheduler"
        return self.worker
