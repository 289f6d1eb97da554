"""The scheduler half in a scheduling loop like vLLM's: its real page manager and requests, pages that hold tokens."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from page_tape import Tape, check_context
from planned_rounds import HASHER, PAGE
from tiny_rounds import FILLER, NEUTRAL, Prompt, cut
from tokendance_engine.adapters.vllm import scheduler_side
from tokendance_engine.adapters.vllm.intake import Intake
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.messages import StepMeta, WorkerReport
from tokendance_engine.adapters.vllm.mirror_jobs import FILLER as STORED_FILLER
from tokendance_engine.adapters.vllm.mirror_jobs import Held, MirrorReport, MirrorWork, Owner
from tokendance_engine.adapters.vllm.rekey import Disposition
from tokendance_engine.adapters.vllm.scheduler_side import SchedulerSide
from tokendance_engine.config import EngineConfig
from tokendance_engine.reuse.ports import Run
from tokendance_engine.rounds.content import ContentSessions
from tokendance_engine.rounds.tag import EngineTag
from tokendance_sdk.protocol import BODY_KEY
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

BUDGET = 512
"""Most tokens of a step of vLLM's own, as of a step of ours."""


class BareIntake(Intake):
    """Without a model's tokenizer."""

    def __init__(self, settings: EngineConfig) -> None:
        self._settings, self._max_tokens = settings, 2048
        self.page_size = PAGE
        self._sessions = ContentSessions(settings.min_reused_tokens)
        self.filler, self.neutral, self.unsupported = FILLER, NEUTRAL, None


def make_config(pages: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return KVCacheConfig(pages, [], [KVCacheGroupSpec(["layer"], spec)])


def make_manager(pages: int) -> KVCacheManager:
    return KVCacheManager(
        make_config(pages),
        max_model_len=2048,
        scheduler_block_size=PAGE,
        hash_block_size=PAGE,
        enable_caching=True,
    )


class Loop:
    """Waiting requests are asked in order, running ones computed; a worker answers at the end of every step.

    Attributes:
        broken: the worker fails in all of its steps.
        store, kept: what the worker keeps of members' contexts and of masters.
        ending: requests whose pages are held until they are captured.
        reports: by request, as their answers end.
        preempted: how often a running request lost its pages.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: int = 201, **settings: Any) -> None:
        small = {"balanced_tokens": 8, "tail_tokens": 16, "gather_cap_ms": 60_000, **settings}
        made = EngineConfig.resolve(flags=small, environ={})
        monkeypatch.setattr(scheduler_side, "Intake", lambda *_: BareIntake(made))
        text = SimpleNamespace(max_position_embeddings=4096)
        config: Any = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=PAGE),
            scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=BUDGET),
            model_config=SimpleNamespace(max_model_len=2048, hf_text_config=text),
            parallel_config=SimpleNamespace(world_size=1),
        )
        self.side = SchedulerSide(config, made, make_config(pages))
        self.manager = make_manager(pages)
        self.side.bind(self.manager)
        self.tape = Tape(pages, PAGE)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.reports: dict[str, dict[str, Any]] = {}
        self.broken = False
        self.ending: dict[str, Request] = {}
        self.kept: dict[tuple[str, str], tuple[int, np.ndarray[Any, np.dtype[np.int64]]]] = {}
        self.store: dict[Owner, tuple[Held, np.ndarray[Any, np.dtype[np.int64]]]] = {}
        self.preempted = 0
        self.ids = itertools.count()

    def add(
        self,
        prompt: Prompt,
        agent: str,
        answer: int = 4,
        tagged: bool = True,
        salt: str | None = None,
        **tag: Any,
    ) -> Request:
        """A request arrives."""
        tokens, segments = cut(prompt)
        name = f"{agent}-{next(self.ids)}"
        made = EngineTag("r", agent, "s", name, segments=tuple(s.end for s in segments[:-1]), **tag)
        extra = {"kv_transfer_params": made.to_params()} if tagged else {}
        params = SamplingParams(max_tokens=answer, extra_args=extra)
        request = Request(name, tokens.tolist(), params, None, cache_salt=salt, block_hasher=HASHER)
        self.side.on_new_request(request)
        self.waiting.append(request)
        return request

    def member(self, request: Request) -> Member:
        return self.side._members[request.request_id]

    def step(self) -> StepMeta:
        """One step: schedule, compute, answer."""
        scheduled: dict[str, int] = {}
        room = BUDGET
        for request in list(self.running):
            n = min(room, request.num_tokens - request.num_computed_tokens)
            while request in self.running and self.manager.allocate_slots(request, n) is None:
                scheduled.pop(self._preempt(), None)
            if request in self.running:
                scheduled[request.request_id] = n
                room -= n
        for request in list(self.waiting):
            found, cached, _ = self.manager.get_computed_blocks(request)
            if room == 0 or self.side.hold(request, cached):
                continue
            n = min(room, request.num_tokens - cached)
            if self.manager.allocate_slots(request, n, cached, found) is None:
                break
            self.side.seat(request)
            self.waiting.remove(request)
            self.running.append(request)
            request.status, request.num_computed_tokens = RequestStatus.RUNNING, cached
            scheduled[request.request_id] = n
            room -= n
        output: Any = SimpleNamespace(
            num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(scheduled.values())
        )
        meta = self.side.build_meta(output)
        self.side.check()
        self._work(meta, scheduled)
        self._answer(scheduled)
        self.side.check()
        return meta

    def run(self, steps: int = 60) -> None:
        """To the end of all requests."""
        for _ in range(steps):
            if not (self.waiting or self.running or self.ending):
                return
            self.step()
        raise AssertionError(f"{len(self.waiting)} requests still wait after {steps} steps")

    def _preempt(self) -> str:
        """The last one to run waits again, in front of all others, as vLLM does it."""
        request = self.running.pop()
        self.manager.free(request)
        request.status, request.num_computed_tokens = RequestStatus.PREEMPTED, 0
        self.waiting.insert(0, request)
        self.preempted += 1
        return request.request_id

    def abort(self, request: Request) -> None:
        """A client goes away."""
        request.status = RequestStatus.FINISHED_ABORTED
        self._end(request)
        self.side.check()

    def table(self, request: Request) -> np.ndarray[Any, np.dtype[np.int32]]:
        """A running request's page table."""
        (group,) = self.manager.coordinator.single_type_managers
        return np.array([b.block_id for b in group.req_to_blocks[request.request_id]], dtype=np.int32)

    def _work(self, meta: StepMeta, scheduled: dict[str, int]) -> None:
        report = WorkerReport()
        if meta.mirrors is not None:
            report.mirrors = self._serve_mirrors(meta.mirrors)
        if self.broken:
            report.broken_masters = [job.master for job in meta.masters]
            report.failed = [job.request_id for job in meta.members]
        else:
            self.tape.run(meta)
            report.done = {job.request_id: (1.0, 2.0) for job in meta.members}
            for kept in meta.mirrors.masters if meta.mirrors is not None else []:
                rows = self.tape.read(kept.pages, 0, len(kept.tokens)).copy()
                self.kept[kept.owner.salt, kept.owner.session] = kept.master, rows
        pieces = meta.shifts.pieces if meta.shifts else {}
        runs = []
        for request in self.running:
            start, n = request.num_computed_tokens, scheduled.get(request.request_id, 0)
            for length, shift in pieces.get(request.request_id, [(n, 0)]):
                tokens = np.array(request.all_token_ids[start : start + length], dtype=np.int32)
                runs.append(Run(tokens, start, self.table(request), shift))
                start += length
        self.tape.compute(runs)
        self.side.hear(report)
        for name in report.mirrors.captured:
            self.manager.free(self.ending.pop(name))

    def _answer(self, scheduled: dict[str, int]) -> None:
        for request in list(self.running):
            request.num_computed_tokens += scheduled.get(request.request_id, 0)
            if request.num_computed_tokens < request.num_tokens:
                continue
            self._check(request)
            if request.num_output_tokens == request.max_tokens:
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                self._end(request)
            else:
                request.append_output_token_ids(5)

    def _check(self, request: Request) -> None:
        """Its whole context holds its tokens; positions ascend, and without a tag they are the indices."""
        n = request.num_computed_tokens
        rows = self.tape.read(self.table(request), 0, n)
        member = self.side._members.get(request.request_id)
        lies = Disposition() if member is None else member.lies
        positions = lies.frame.at(np.arange(n)).tolist()
        check_context(rows, list(request.all_token_ids)[:n], positions, lies.filling)

    def _end(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        size = request.num_computed_tokens
        pages = self.manager.get_block_ids_for_computed_tokens(request.request_id, size)[0]
        delayed, params = self.side.finish(request, pages)
        if params is not None:
            self.reports[request.request_id] = params[BODY_KEY]
        if delayed:
            self.ending[request.request_id] = request
        else:
            self.manager.free(request)

    def _serve_mirrors(self, work: MirrorWork) -> MirrorReport:
        """A store that keeps what stands in pages, and forgets nothing."""
        report = MirrorReport()
        for capture in work.captures:
            rows = self.tape.read(capture.pages, 0, len(capture.tokens))
            own = capture.tokens != STORED_FILLER  # the others repeat rows of elsewhere
            told = np.stack([capture.tokens, capture.positions.at(np.arange(len(rows)))], axis=1)
            assert (rows[own] == told[own]).all(), "other rows than the store is told"
            before = self.store.get(capture.owner)
            if capture.same and before is not None:
                n = min(capture.same, len(before[1]))
                assert (rows[:n] == before[1][:n]).all(), "rows said to be the same are not"
            held = Held(capture.tokens, capture.positions, capture.approximate_from)
            self.store[capture.owner] = held, rows.copy()
            report.captured.append(capture.request_id)
        for revived in work.revived:
            if self.broken:
                report.broken.append(revived.master)
                continue
            number, rows = self.kept[revived.owner.salt, revived.owner.session]
            assert (number, len(rows)) == (revived.master, revived.rows)
            self.tape._write(revived.pages, 0, rows)
        for job in work.restores:
            if self.broken:
                report.lost.append(job.request_id)
                continue
            self.tape._write(job.pages, job.start, self.store[job.owner][1][job.start : job.end])
            report.restored[job.request_id] = 1.0
        for find in work.finds:
            held, _ = self.store.get(find.owner, (None, None))
            master = self.kept.get((find.owner.salt, find.owner.session))
            if held is not None and master is not None:
                held = replace(held, master=(master[0], len(master[1])))
            report.held[find.request_id] = (held,)
        return report
