"""One step's budget, and who is still waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("vllm")

from planned_rounds import MARKER, PAGE, Engine, out
from tiny_rounds import private
from tokendance_engine.adapters.vllm.members import Member
from tokendance_engine.adapters.vllm.preparation import Preparation
from tokendance_engine.adapters.vllm.step_work import StepWork
from tokendance_engine.reuse.fillers import repeated

HISTORIES = (30, 75, 140)


def prepared(engine: Engine) -> list[Member]:
    """Members whose pages are held but not handed out; 8 tokens of each block are recomputed."""
    members = engine.plan(
        [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(HISTORIES)]
    )
    for member in members:
        assert member.master is not None
        member.plan = engine.placement.plan(member, member.master.transcript)
        member.preparation = Preparation.make(engine.pool, [], member.plan, member.master.blocks, PAGE)
    return members


def test_a_master_larger_than_a_step_is_computed_over_several() -> None:
    engine = Engine()
    prepared(engine)
    work, master = StepWork(engine.families, 100), engine.master()
    rows = [0]
    while not work.compute_master(master):
        assert not work.compute_master(master), "the step's budget is spent"
        [job] = work.take().masters
        rows.append(job.tokens)
    rows.append(work.take().masters[0].tokens)
    assert rows[1:-1] == [100] * (len(rows) - 2)
    assert sum(rows) == master.transcript.rows


def test_members_share_the_steps_budget_and_the_first_always_fits() -> None:
    engine = Engine()
    members = prepared(engine)
    plans = [m.plan for m in members if m.plan is not None]
    work = StepWork(engine.families, plans[0].computed + plans[1].computed)
    assert engine.master().next_job(1000)
    one, two, three = members
    assert all(work.fits(m, plan) for m, plan in zip(members, plans, strict=True))
    work.hand_out(one)
    assert work.fits(two, plans[1])
    work.hand_out(two)
    assert not work.fits(three, plans[2])
    work.take()
    assert work.fits(three, plans[2])
    assert StepWork(engine.families, 1).fits(three, plans[2])


def test_a_serial_member_has_a_step_of_its_own_before_and_after_others() -> None:
    engine = Engine()
    one, two, three = prepared(engine)
    two.tag = replace(two.tag, execution="serial")
    assert two.plan is not None
    assert three.plan is not None
    work = StepWork(engine.families, 10_000)
    work.hand_out(one)
    assert work.fits(three, three.plan)
    assert not work.fits(two, two.plan)
    work.take()
    assert work.fits(two, two.plan)
    work.hand_out(two)
    assert not work.fits(three, three.plan)
    work.take()
    assert work.fits(three, three.plan)


def test_a_backend_that_must_be_asked_gets_the_plan_and_no_runs() -> None:
    engine = Engine()
    members = engine.plan(
        [[private(m, 0, n), out(0, 90), out(1, 90), MARKER] for m, n in enumerate(HISTORIES)],
        backend="cacheblend",
    )
    work = StepWork(engine.families, 100)
    for member in members[:2]:
        assert member.master is not None
        plan = member.plan = engine.placement.plan(member, member.master.transcript)
        member.preparation = Preparation.make(engine.pool, [], plan, member.master.blocks, PAGE)
        assert plan.selected == 0
        fits = work.fits(member, plan)
        work.hand_out(member)
        job = work.meta.members[-1]
        assert job.ask is not None
        assert not job.runs
        assert (job.ask.backend, job.ask.options["percent"]) == ("cacheblend", 15)
        assert job.ask.compute.tolist() == plan.compute.tolist()
        assert len(job.ask.prompt) == plan.end
        assert job.ask.segments.tolist() == [[s.start, s.end, s.row] for s in member.found or []]
        assert job.moves[:, 2].sum() == plan.reused
    assert not fits, "what it is likely to choose does not count in the step's budget"


def test_what_is_handed_out_is_the_plan_with_positions() -> None:
    engine = Engine()
    members = prepared(engine)
    work = StepWork(engine.families, 10_000)
    for member in members:
        master, plan = member.master, member.plan
        assert master is not None
        assert plan is not None
        work.hand_out(member)
        job = work.meta.members[-1]
        frame, rows = member.lies.frame, plan.restore[:, 0]
        assert job.moves[:, :3].tolist() == plan.restore.tolist()
        assert job.moves[:, 3].tolist() == master.transcript.frame.at(rows).tolist()
        assert job.moves[:, 4].tolist() == frame.at(plan.restore[:, 1]).tolist()
        assert job.master_pages.tolist() == master.pages().tolist()
        told = [(int(t), run.start + i + run.shift) for run in job.runs for i, t in enumerate(run.tokens)]
        index = np.concatenate([np.arange(a, b) for a, b in plan.compute.tolist()])
        assert np.concatenate([run.written() for run in job.runs]).tolist() == index.tolist()
        for (
            first,
            count,
        ) in member.lies.filling.inserts:  # a filler is computed as another token of the context
            source = repeated(member.lies.filling, first, count)
            assert source is not None
            inside = (first <= index) & (index < first + count)
            index[inside] += source - first
        wanted = zip(member.prompt[index].tolist(), frame.at(index).tolist(), strict=True)
        assert told == list(wanted)
        assert {run.pages.tobytes() for run in job.runs} == {job.pages.tobytes()}


def test_masters_stay_pinned_to_the_end_of_the_step_that_reads_them() -> None:
    engine = Engine()
    members, master = prepared(engine), engine.master()
    work = StepWork(engine.families, 10_000)
    for member in members:
        work.hand_out(member)
    assert [m.master for m in members] == [None] * 3
    work.take()
    assert master.users == 3
    work.unpin()
    work.unpin()
    assert master.users == 0


def test_an_answer_is_taken_once_and_only_from_members_that_were_handed_out() -> None:
    engine = Engine()
    [member, *_] = prepared(engine)
    work = StepWork(engine.families, 10_000)
    assert not work.is_waiting()
    work.hand_out(member)
    work.take()
    assert work.is_waiting()
    assert not work.answered("somebody else")
    assert work.answered(member.request.request_id)
    assert not work.answered(member.request.request_id)
    assert not work.is_waiting()


def test_an_answer_that_never_comes_is_overdue_in_the_end() -> None:
    engine = Engine()
    [member, *_] = prepared(engine)
    work = StepWork(engine.families, 10_000)
    work.hand_out(member)
    steps = 0
    while not (overdue := work.unanswered()):
        steps += 1
        assert steps < 1000
    assert overdue == [member.request.request_id]
    assert steps >= 16, "a slow step is no fault"
