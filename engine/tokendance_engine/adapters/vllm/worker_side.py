"""The worker half of the connector: executes masters and members handed over by the scheduler half.

A fault in filling pages is reported, and vLLM computes those requests exactly.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger

from tokendance_engine.adapters.vllm.key_probe import check_keys
from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.mirror_jobs import MirrorReport, MirrorWork
from tokendance_engine.adapters.vllm.mirror_store import open_store
from tokendance_engine.adapters.vllm.mirror_worker import MirrorWorker
from tokendance_engine.adapters.vllm.page_rows import PageRows
from tokendance_engine.adapters.vllm.pages import Layer, PackingError, PagedKV
from tokendance_engine.adapters.vllm.positions import position_buffer, shift_positions
from tokendance_engine.adapters.vllm.store_levels import StoreLevels
from tokendance_engine.adapters.vllm.support import UnsupportedError, check_config, check_groups, read_layers
from tokendance_engine.adapters.vllm.virtual_batch import ModelBatch
from tokendance_engine.config import EngineConfig
from tokendance_engine.observe.metrics import Record
from tokendance_engine.reuse.collector import collect, compute
from tokendance_engine.reuse.judge import Judge
from tokendance_engine.reuse.ports import MemberJob, Run

logger = init_logger("vllm.tokendance")


class WorkerSide:
    """Masters, restores and virtual batches of one worker process."""

    def __init__(self, config: VllmConfig, settings: EngineConfig) -> None:
        self._config = config
        self._settings = settings
        self._runner: Any = None
        self._caches: Mapping[str, torch.Tensor] = {}
        self._engine: tuple[PagedKV, ModelBatch] | None = None
        self._judge: Judge | None = None
        self._unsupported: str | None = None
        self._report = WorkerReport()
        self._broken_masters: set[int] = set()
        self._captured: set[str] = set()
        self.mirrors: MirrorWorker | None = None
        self._store_levels: StoreLevels | None = None
        self.families: list[dict[str, Any]] = []

    def register(self, caches: Mapping[str, torch.Tensor]) -> None:
        """Remember vLLM's pages, and the model runner that owns them (found on the call stack)."""
        self._caches = caches
        frame = sys._getframe()
        while frame is not None:
            owner = frame.f_locals.get("self")
            if owner is not None and hasattr(owner, "get_model") and hasattr(owner, "attn_groups"):
                self._runner = owner
                break
            frame = frame.f_back  # type: ignore[assignment]
        try:
            self._engine = self._open()
            self._judge = Judge(PageRows(self._engine[0]), self._engine[1])
        except Exception as error:
            self._unsupported = str(error) or type(error).__name__
            if not isinstance(error, UnsupportedError):
                logger.exception("TokenDance: support gate failed")
        self._report.gate = (self._unsupported,)
        self._report.shifts = self._runner is not None and position_buffer(self._runner) is not None
        logger.info("TokenDance: %s", self.gate_line())
        if self._engine is not None and self._settings.cpu_bytes:
            try:
                kv = self._engine[0]
                self.mirrors = MirrorWorker(kv, *open_store(self._config, self._settings, kv))
                source = f"worker {self._config.parallel_config.rank}"
                self._store_levels = StoreLevels(self.mirrors.store.report, source)
            except Exception:
                logger.exception("TokenDance: no store for histories; they are computed again instead")

    def gate_line(self) -> str:
        """One line: is reuse on, and how."""
        if self._engine is None:
            return f"reuse is off: {self._unsupported}"
        kv, _ = self._engine
        kind = type(kv.layers[0].module.impl).__name__
        path = getattr(kv, "path", type(kv).__name__)
        return f"reuse is on for {len(kv.layers)} layers, pages of {kv.page_size} tokens, {kind}, restore by {path}"

    def status(self) -> dict[str, Any]:
        """Gate result and live families, for the status route."""
        return {
            "reuse": self._engine is not None,
            "reason": self._unsupported,
            "gate": self.gate_line(),
            "families": self.families,
            "store": self.mirrors.status() if self.mirrors is not None else None,
        }

    def run(self, meta: StepMeta) -> None:
        """The step's work, masters before members; then vLLM's own forward pass follows.

        Raises:
            RuntimeError: positions of the forward pass cannot be shifted; going on would give wrong answers.
        """
        if meta.families is not None:
            self.families = meta.families
        self._run_mirrors(meta.mirrors)
        self._run_masters(meta)
        self._run_members(meta)
        if self.mirrors is not None and meta.mirrors is not None:
            self.mirrors.keep([job for job in meta.mirrors.masters if job.master not in self._broken_masters])
        if meta.shifts is not None:
            shift_positions(self._runner, meta.shifts)

    def _run_mirrors(self, work: MirrorWork | None) -> None:
        """Before everything else, which reads what comes back; masters are kept after it, once they are computed."""
        if self.mirrors is not None:
            self._broken_masters |= self.mirrors.run(work)
        elif work is not None:
            self._broken_masters.update(job.master for job in work.revived)
            released = self._report.mirrors.released
            self._report.mirrors = MirrorReport.refusing(work)
            self._report.mirrors.released = released
        if work is not None:
            self._captured.update(job.request_id for job in work.captures)

    def take_captured(self) -> set[str] | None:
        """Requests whose pages need not be held any longer."""
        captured, self._captured = self._captured, set()
        return captured or None

    def release(self, salt: str, session: str) -> bool:
        """Forget a session: its histories here, its master in the scheduler half; False if no history was held."""
        self._report.mirrors.released.append((salt, session))
        return self.mirrors is not None and self.mirrors.release(salt, session)

    def close(self) -> None:
        """Write stored histories to their tier, if there is one."""
        if self.mirrors is not None:
            self.mirrors.close()

    def _run_masters(self, meta: StepMeta) -> None:
        for job in meta.masters:
            try:
                _, batch = self._need_engine()
                self.compute_master(batch, job.runs)
            except Exception:
                logger.exception("TokenDance: computing a master failed; its round is computed exactly")
                self._broken_masters.add(job.master)
                self._report.broken_masters.append(job.master)

    def _run_members(self, meta: StepMeta) -> None:
        """A fault fails all of them: later ones may read pages of earlier ones."""
        if not meta.members:
            return
        try:
            kv, batch = self._need_engine()
            broken = self._broken_masters.intersection(job.master for job in meta.members)
            if broken:
                raise RuntimeError(f"masters {sorted(broken)} were not computed")
            timing = self.collect_members(kv, batch, meta.members)
            for job in meta.members:
                self._report.done[job.request_id] = (timing.restore_ms, timing.compute_ms)
            self._report.verdicts.update(timing.verdicts)
        except Exception:
            logger.exception("TokenDance: filling a round's pages failed; vLLM computes its members exactly")
            self._report.failed.extend(job.request_id for job in meta.members)

    # The two methods that touch KV, apart so that fault tests can replace them.
    def compute_master(self, batch: ModelBatch, runs: list[Run]) -> None:
        compute(runs, batch)

    def collect_members(self, kv: PagedKV, batch: ModelBatch, jobs: list[MemberJob]) -> Any:
        return collect(jobs, kv, batch, self._judge)

    def take_report(self) -> WorkerReport | None:
        """What the scheduler half must hear about this step, if anything."""
        if self.mirrors is not None:
            report, released = self.mirrors.take_report(), self._report.mirrors.released
            report.released += released
            self._report.mirrors = report
        if self._report.is_empty():
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def take_stats(self) -> Record | None:
        """What the metrics must hear, if anything."""
        return self._store_levels.take() if self._store_levels is not None else None

    def _need_engine(self) -> tuple[PagedKV, ModelBatch]:
        if self._engine is None:
            raise UnsupportedError(self._unsupported or "the support gate has not run")
        return self._engine

    def _open(self) -> tuple[PagedKV, ModelBatch]:
        if self._runner is None:
            raise UnsupportedError("vLLM's model runner was not found")
        check_config(self._config)
        check_groups(self._runner.attn_groups)
        started = time.perf_counter()
        context = self._config.compilation_config.static_forward_context
        model, settings = self._runner.get_model(), self._config.model_config
        layers = read_layers(model, self._caches, context)
        with set_forward_context(None, self._config):
            named = dict(zip(self._caches, layers, strict=True))
            check_keys(model, named, int(settings.get_hidden_size()), settings.dtype)
        # The runner's builder sets what the writer needs (such as the CPU instruction set), so it comes first.
        batch = ModelBatch(
            self._runner,
            self._config,
            list(self._caches),
            int(layers[0].cache.shape[2]),
            layers[0].cache.device,
        )
        kv = self._open_pages(layers)
        logger.debug("TokenDance: page packing learned in %.0f ms", (time.perf_counter() - started) * 1e3)
        return kv, batch

    def _open_pages(self, layers: list[Layer]) -> PagedKV:
        """The fastest restore that was verified on these pages."""
        kernel, device = self._settings.kernel, layers[0].cache.device.type
        if kernel.startswith("triton") or (kernel == "auto" and device == "cuda"):
            from tokendance_engine.adapters.vllm.gpu_pages import TritonPagedKV

            return TritonPagedKV(layers, interpret=kernel == "triton-interpret")
        if kernel == "auto" and device == "cpu":
            try:
                from tokendance_engine.adapters.vllm.cpu_pages import CpuPagedKV

                return CpuPagedKV(layers)
            except (PackingError, ImportError) as error:
                logger.info("TokenDance: restoring through the attention backend's writer (%s)", error)
        return PagedKV(layers)
