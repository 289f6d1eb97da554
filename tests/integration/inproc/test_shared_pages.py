"""Placement `shared`: members point to the master's own pages, and nobody writes to them."""

from __future__ import annotations

import pytest
import torch
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt
from tokendance_engine.adapters.vllm import placement
from tokendance_engine.reuse.plan import Context

pytestmark = pytest.mark.server
HISTORIES = (70, 101, 133, 90)
BLOCKS = (150, 150, 150)


def live(rounds: Rounds) -> int:
    """Pages that somebody holds."""
    return int(rounds.scheduler.pool.size - 1 - rounds.scheduler.pool.free)


def tables(rounds: Rounds) -> dict[str, list[int]]:
    """Page tables of running requests."""
    (group,) = rounds.scheduler._manager.coordinator.single_type_managers
    return {name: [b.block_id for b in blocks] for name, blocks in group.req_to_blocks.items()}


def contents(rounds: Rounds, pages: list[int]) -> list[torch.Tensor]:
    """The bytes of some pages, layer by layer."""
    return [cache[pages].clone() for cache in rounds.worker._caches.values()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def running(rounds: Rounds, prompts: list[Prompt], max_tokens: int = 40, **tag: object) -> Steps:
    """The members of a round, stepped until all of them run."""
    steps = Steps(rounds)
    for p in prompts:
        steps.add(p.agent, p, {"round_id": "s:1", "round_size": len(prompts), **tag}, max_tokens=max_tokens)
    scheduler = rounds.llm.llm_engine.engine_core.engine_core.scheduler
    for _ in range(200):
        if len(scheduler.running) == len(prompts):
            return steps
        steps.step()
    raise AssertionError("the members never ran at once")


@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_pages_of_the_shared_region_exist_once(rounds: Rounds, fidelity: str) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    held = {}
    for asked in ("copy", "shared"):
        steps = running(rounds, prompts, fidelity=fidelity, placement=asked)
        held[asked] = live(rounds)
        steps.finish()
        for p in prompts:
            report = steps.report(p.agent)
            assert (report["placement"], report["fallback_reason"]) == (
                "copy" if asked == "copy" else "shared",
                None,
            )
        rounds.forget()
    shared = sum(steps.report(p.agent)["shared_tokens"] for p in prompts) // 32
    assert shared >= (4 * 11 if fidelity == "fast" else 4 * 5)
    # Fillers may cost each member and the master one page.
    assert held["copy"] - held["shared"] >= shared - len(prompts) - 2


def test_members_hold_the_masters_pages_and_vllm_never_writes_to_them(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    steps = running(rounds, prompts, fidelity="fast")
    (family,) = rounds.scheduler._families._families.values()
    master = [b.block_id for b in family.master.blocks]
    common = set.intersection(*(set(pages) for pages in tables(rounds).values())) & set(master)
    assert len(common) >= 11
    before = contents(rounds, sorted(common))
    steps.finish()
    assert same(before, contents(rounds, sorted(common)))


@pytest.mark.parametrize("fidelity", ["fast", "balanced"])
def test_sharing_pages_changes_no_answer(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, fidelity: str
) -> None:
    """Laid out alike, members with copies of the master's pages say the same as members with the pages themselves."""
    prompts = rounds.members(HISTORIES, BLOCKS)
    shared = rounds.play(prompts, fidelity=fidelity, placement="shared", max_tokens=30)
    assert all(r["shared_tokens"] > 0 for r in shared.reports)
    rounds.forget()
    rounds.scribble()
    monkeypatch.setattr(placement, "Context", lambda *args, **more: Context(*args[:-1], share=False, **more))
    copied = rounds.play(prompts, fidelity=fidelity, placement="shared", max_tokens=30)
    assert all(r["shared_tokens"] == 0 and r["reused_tokens"] > 0 for r in copied.reports)
    assert [r["skipped_positions"] for r in copied.reports] == [
        r["skipped_positions"] for r in shared.reports
    ]
    assert copied.tokens == shared.tokens


def test_a_next_round_finds_its_history_shared_pages_included(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    first = rounds.play(prompts, "s:1", fidelity="fast", max_tokens=9)
    blocks, end = [rounds.random(200), rounds.random(200)], rounds.random(20)
    following = []
    for p, answer in zip(prompts, first.tokens, strict=True):
        more = join(p.agent, p.tokens + answer, blocks, end)
        following.append(Prompt(p.agent, more.tokens, p.boundaries + more.boundaries))
    got = rounds.play(following, "s:2", fidelity="fast")
    for report, prompt in zip(got.reports, prompts, strict=True):
        filled = len(prompt.tokens) + 8
        assert report["cached_tokens"] >= filled // 32 * 32
        assert report["placement"] == "shared"
        assert report["shared_tokens"] >= 9 * 32
    shifts = [r["skipped_positions"] for r in got.reports]
    assert all(a >= b["skipped_positions"] for a, b in zip(shifts, first.reports, strict=True)), (
        "offsets only grow"
    )


def test_a_preempted_member_goes_on_where_it_was(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    undisturbed = running(rounds, prompts, fidelity="fast")
    undisturbed.finish()
    rounds.forget()
    rounds.scribble()
    steps = running(rounds, prompts, fidelity="fast")
    steps.step(7)
    scheduler = rounds.llm.llm_engine.engine_core.engine_core.scheduler
    for victim in list(scheduler.running)[1:]:
        scheduler.running.remove(victim)
        scheduler._preempt_request(victim, 0.0)
    rounds.scheduler.check()
    steps.finish()
    assert [steps.tokens(p.agent) for p in prompts] == [undisturbed.tokens(p.agent) for p in prompts]


def test_chunked_prefill_of_what_follows_the_region_keeps_its_positions(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS, task=150)
    whole = rounds.play(prompts, fidelity="fast").tokens
    rounds.forget()
    steps = Steps(rounds)
    with steps.chunks(40):
        for p in prompts:
            steps.add(p.agent, p, {"round_id": "s:1", "round_size": len(prompts), "fidelity": "fast"})
        steps.finish()
    assert [steps.tokens(p.agent) for p in prompts] == whole


def test_a_history_far_longer_than_the_others_is_copied_and_told_why(rounds: Rounds) -> None:
    prompts = rounds.members((70, 90, 1200), BLOCKS)
    reports = rounds.play(prompts, fidelity="fast").reports
    assert [r["placement"] for r in reports] == ["shared", "shared", "copy"]
    assert reports[2]["placement_reason"] == "longer_history"
    assert all(r["reused_tokens"] > 350 for r in reports)
    assert max(r["skipped_positions"] for r in reports) <= 64


LONG = (1450, 1476, 1418)


def test_an_answer_for_which_fillers_leave_no_room_is_laid_out_as_it_is(rounds: Rounds) -> None:
    prompts = rounds.members(LONG, BLOCKS)
    room = 2048 - max(len(p.tokens) for p in prompts) - 3
    got = rounds.play(prompts, fidelity="fast", max_tokens=room)
    assert [len(t) for t in got.tokens] == [room] * 3
    longest = max(got.reports, key=lambda r: r["prompt_tokens"])
    assert (longest["placement"], longest["placement_reason"]) == ("copy", "not_enough_positions")
    assert longest["filler_tokens"] == longest["skipped_positions"] == 0
    assert all(r["fallback_reason"] is None for r in got.reports)


def test_an_answer_without_a_limit_ends_where_the_models_positions_end(rounds: Rounds) -> None:
    prompts = rounds.members(LONG, (100, 100, 120))
    steps = Steps(rounds)
    for p in prompts:
        tag = {"round_id": "s:1", "round_size": len(prompts), "fidelity": "fast"}
        steps.add(p.agent, p, tag, max_tokens=2048 - len(p.tokens))
    steps.finish()
    for p in prompts:
        report = steps.report(p.agent)
        extra = report["filler_tokens"] + report["skipped_positions"]
        assert report["placement"] == "shared"
        assert len(steps.tokens(p.agent)) == 2048 - len(p.tokens) - extra
    assert any(steps.report(p.agent)["skipped_positions"] for p in prompts)


def test_plain_requests_between_and_after_are_exact(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    truth = rounds.plain(prompts, max_tokens=40)
    steps = running(rounds, prompts, fidelity="fast")
    for p in prompts:
        steps.add(f"plain-{p.agent}", p, max_tokens=40)
    steps.finish()
    assert [steps.tokens(f"plain-{p.agent}") for p in prompts] == truth
    assert rounds.round(prompts, max_tokens=40).tokens == truth


def test_an_aborted_round_leaves_no_page_behind(rounds: Rounds) -> None:
    prompts = rounds.members(HISTORIES, BLOCKS)
    for moment in range(6):
        steps = Steps(rounds)
        for p in prompts:
            tag = {"round_id": f"s:{moment}", "round_size": len(prompts), "fidelity": "balanced"}
            steps.add(f"{moment}{p.agent}", p, tag)
        steps.step(moment)
        steps.abort(*(f"{moment}{p.agent}" for p in prompts))
        steps.finish()
        rounds.scheduler.check()


def test_copy_is_what_you_get_when_you_ask_for_it(rounds: Rounds) -> None:
    reports = rounds.play(rounds.members(HISTORIES, BLOCKS), placement="copy").reports
    assert {(r["placement"], r["placement_reason"], r["filler_tokens"]) for r in reports} == {
        ("copy", "copy_requested", 0)
    }
