"""Every state a member can be in: cached, alone, late, doubled, failing."""

from __future__ import annotations

from typing import Any

import pytest
from rounds import Rounds, join
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server


def test_a_cache_hit_that_ends_inside_a_shared_segment(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    cut = [Prompt(p.agent, p.tokens[: p.boundaries[0] + 40], []) for p in prompts]
    rounds.round(cut)
    got = rounds.play(prompts, backend="all")
    assert got.tokens == truth
    assert [r["cached_tokens"] for r in got.reports] == [len(c.tokens) // 32 * 32 for c in cut]


def test_a_cache_hit_that_covers_everything(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.round(prompts, max_tokens=12).tokens
    got = rounds.play(prompts)
    assert got.tokens == truth, "exact pages were at hand, nothing approximate may be used"
    assert {r["fallback_reason"] for r in got.reports} <= {"prefix_cached", "no_gain"}


def test_members_with_the_same_uncached_history(rounds: Rounds) -> None:
    history, blocks, end = rounds.random(200), [rounds.random(90), rounds.random(90)], rounds.random(20)
    prompts = [join(f"a{i}", history + rounds.random(8 * i), blocks, end) for i in range(3)]
    truth = rounds.plain(prompts)
    assert rounds.play(prompts, backend="all").tokens == truth


def test_a_single_agent_runs_alone(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(90,))
    truth = rounds.plain(prompts)
    got = rounds.play(prompts)
    assert got.tokens == truth
    assert got.reports[0]["fallback_reason"] == "alone"
    assert got.reports[0]["role"] == "solo"


def test_no_shared_segments_is_plain(rounds: Rounds) -> None:
    prompts = [Prompt(f"a{i}", rounds.random(150), [100]) for i in range(3)]
    truth = rounds.plain(prompts)
    got = rounds.play(prompts)
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"no_shared_segments"}


def test_short_shared_text_is_not_worth_it(rounds: Rounds) -> None:
    prompts = rounds.members(blocks=(20, 20))
    truth = rounds.plain(prompts)
    got = rounds.play(prompts)
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"no_gain"}


def test_a_straggler_uses_the_master_of_its_round(rounds: Rounds) -> None:
    prompts = rounds.members(blocks=(200, 200, 200))
    rounds.play(prompts[:2])
    late = rounds.play(prompts[2:])
    assert late.reports[0]["role"] == "solo"
    assert late.reports[0]["reused_tokens"] > 0


def test_a_missing_member_delays_the_others_no_longer_than_the_cap(rounds: Rounds) -> None:
    prompts = rounds.members(blocks=(200, 200, 200))
    got = rounds.round(prompts, {"round_id": "s:1"}, max_tokens=2)
    assert all(r["gather_ms"] < 1_000 for r in got.reports)
    rounds.forget()
    gather = rounds.scheduler._gather
    cap, gather.cap = gather.cap, 0.5
    try:
        two = _with_size(rounds, prompts[:2], size=3)
    finally:
        gather.cap = cap
    assert all(450 < r["gather_ms"] < 5_000 for r in two)
    assert all(r["group_size"] == 2 and r["reused_tokens"] > 0 for r in two)


def _with_size(rounds: Rounds, prompts: list[Prompt], size: int) -> list[dict[str, Any]]:
    from tokendance_engine.offline import tag
    from vllm import SamplingParams

    params = [
        tag(
            SamplingParams(max_tokens=2),
            round_id="s:9",
            agent_id=p.agent,
            round_size=size,
            segments=p.boundaries,
        )
        for p in prompts
    ]
    outputs = rounds.llm.generate([{"prompt_token_ids": p.tokens} for p in prompts], params, use_tqdm=False)
    return [o.kv_transfer_params["tokendance"] for o in outputs]


def test_a_doubled_member_is_served_twice(rounds: Rounds) -> None:
    prompts = rounds.members()
    truth = rounds.plain([*prompts, prompts[0]])
    got = rounds.play([*prompts, prompts[0]], backend="all")
    assert got.tokens == truth


def test_two_rounds_of_one_session_at_once(rounds: Rounds) -> None:
    from tokendance_engine.offline import tag
    from vllm import SamplingParams

    one, two = rounds.members(), rounds.members()
    truth = rounds.plain([*one, *two])
    mixed, params = [], []
    for i in range(3):
        for name, prompt in (("s:1", one[i]), ("s:2", two[i])):
            mixed.append({"prompt_token_ids": prompt.tokens})
            fields = {
                "agent_id": prompt.agent,
                "round_size": 3,
                "segments": prompt.boundaries,
                "backend": "all",
            }
            params.append(
                tag(SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), round_id=name, **fields)
            )
    outputs = rounds.llm.generate(mixed, params, use_tqdm=False)
    got = [list(o.outputs[0].token_ids) for o in outputs]
    assert got[0::2] + got[1::2] == truth


def test_a_round_id_used_again_with_other_text(rounds: Rounds) -> None:
    rounds.play(rounds.members(), "s:1")
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    rounds.play(rounds.members(), "s:1")
    assert rounds.play(prompts, "s:1", backend="all").tokens == truth


def test_two_tenants_share_nothing(rounds: Rounds) -> None:
    prompts = rounds.members()
    rounds.play(prompts[:2])
    from tokendance_engine.offline import tag
    from vllm import SamplingParams

    params = tag(
        SamplingParams(temperature=0, max_tokens=4),
        round_id="s:1",
        round_size=1,
        segments=prompts[2].boundaries,
    )
    request = {"prompt_token_ids": prompts[2].tokens, "cache_salt": "other"}
    (output,) = rounds.llm.generate([request], [params], use_tqdm=False)
    report = output.kv_transfer_params["tokendance"]
    assert report["fallback_reason"] == "alone"
    assert report["reused_tokens"] == report["cached_tokens"] == 0


def test_members_larger_than_one_step_come_in_turn(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(300, 301, 302, 303), blocks=(200, 200))
    truth = rounds.plain(prompts)
    work = rounds.scheduler._work
    limit, work.limit = work.limit, 256
    try:
        got = rounds.play(prompts, backend="all")
    finally:
        work.limit = limit
    assert got.tokens == truth
    assert all(r["group_size"] == 4 for r in got.reports)


def test_a_round_larger_than_the_batch(rounds: Rounds) -> None:
    prompts = rounds.members(histories=tuple(range(40, 60)))
    truth = rounds.plain(prompts, max_tokens=3)
    assert len(prompts) > 16
    got = rounds.play(prompts, backend="all", max_tokens=3)
    assert got.tokens == truth


@pytest.mark.parametrize("method", ["collect_members", "compute_master"])
def test_a_fault_in_the_worker_means_exact_recompute(rounds: Rounds, method: str) -> None:
    prompts = rounds.members()
    truth = rounds.plain(prompts)
    with rounds.broken(method, RuntimeError("injected")) as calls:
        got = rounds.play(prompts, fidelity="fast")
    assert calls, "the fault was never reached"
    assert got.tokens == truth
    assert {r["fallback_reason"] for r in got.reports} == {"worker_error"}
    # The engine is whole: the next round reuses again.
    after = rounds.play(prompts, "s:2", fidelity="balanced")
    assert all(r["fallback_reason"] in (None, "prefix_cached", "no_gain") for r in after.reports)
    fresh = rounds.members()
    assert all(r["reused_tokens"] > 0 for r in rounds.play(fresh, "s:3").reports)


def test_a_fault_while_plain_requests_run_leaves_them_alone(rounds: Rounds) -> None:
    prompts, others = rounds.members(), rounds.members()
    truth, other_truth = rounds.plain(prompts), rounds.plain(others)
    from tokendance_engine.offline import tag
    from vllm import SamplingParams

    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    tagged = [
        tag(plain, round_id="s:1", agent_id=p.agent, round_size=3, segments=p.boundaries) for p in prompts
    ]
    with rounds.broken("collect_members", RuntimeError("injected")):
        outputs = rounds.llm.generate(
            [{"prompt_token_ids": p.tokens} for p in [*others, *prompts]],
            [plain] * 3 + tagged,
            use_tqdm=False,
        )
    got = [list(o.outputs[0].token_ids) for o in outputs]
    assert got == other_truth + truth
