"""A KV space so small that masters and members compete for it."""

from __future__ import annotations

import pytest
from rounds import Rounds, join
from steps import Steps
from tokendance_bench.inproc import Prompt

pytestmark = pytest.mark.server
SETTINGS = {"num_gpu_blocks_override": 40, "max_model_len": 1024}


@pytest.mark.parametrize("blocks", [(200, 200), (150, 150, 150), (400, 150)])
def test_members_that_do_not_fit_beside_their_master_still_finish(
    rounds: Rounds, blocks: tuple[int, ...]
) -> None:
    # 40 pages hold 1,280 tokens: a master of up to half of them, and hardly one member at a time.
    prompts = rounds.members(histories=(300, 310, 320), blocks=blocks)
    truth = rounds.plain(prompts, max_tokens=20)
    assert rounds.play(prompts, backend="all", max_tokens=20).tokens == truth


def test_an_idle_master_gives_way_to_a_plain_request(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(70, 70), blocks=(200, 200))
    rounds.play(prompts, fidelity="fast", max_tokens=2)
    assert rounds.scheduler._families.snapshot()[0]["pages"] > 0
    long = rounds.members(histories=(900,), blocks=(50,))
    got = rounds.round(long, max_tokens=5).tokens
    assert rounds.scheduler._families.snapshot()[0]["pages"] == 0
    assert got == rounds.plain(long, max_tokens=5)


def test_pages_of_the_master_are_not_taken_from_the_member_that_asks(rounds: Rounds) -> None:
    blocks, end = [rounds.random(200)], rounds.random(20)
    prompts = [join(f"a{i}", rounds.random(200), blocks, end) for i in range(2)]
    filler = rounds.random(800)
    truth = rounds.plain(prompts)
    rounds.cache_histories(prompts)
    rounds.round([Prompt("filler", filler, [])])  # the histories are now the oldest cached pages
    got = rounds.play(prompts, backend="all")
    assert any(r["recomputed_tokens"] > 0 for r in got.reports), "nobody was restored: the test shows nothing"
    assert got.tokens == truth


def test_a_master_that_gives_way_is_not_overwritten_before_it_was_read(rounds: Rounds) -> None:
    end = rounds.random(20)
    one, two = [rounds.random(330)], [rounds.random(330)]
    first = [join(f"a{i}", rounds.random(40), one, end) for i in range(2)]
    second = [join(f"b{i}", rounds.random(40), two, end) for i in range(2)]
    truth = rounds.play(first, "one:1", fidelity="fast").tokens
    rounds.forget()
    rounds.scribble()
    steps = Steps(rounds)
    for name, prompts in (("one:1", first), ("two:1", second)):
        for p in prompts:
            steps.add(p.agent, p, {"round_id": name, "round_size": 2, "fidelity": "fast"})
    steps.finish()
    assert [steps.tokens(p.agent) for p in first] == truth
    assert all(steps.report(p.agent)["reused_tokens"] > 0 for p in first)


def test_an_idle_master_gives_way_to_a_request_whose_own_cached_pages_are_free(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(70, 70), blocks=(300,))
    rounds.play(prompts, fidelity="fast", max_tokens=2)
    held = rounds.scheduler._families.snapshot()[0]["pages"]
    assert held > 0
    # All but three of the pages that the master leaves are cached for a request that needs two more than there are.
    whole = rounds.random(32 * (39 - held) + 60)
    steps = Steps(rounds)
    steps.add("before", Prompt("x", whole[: 32 * (36 - held)], []), max_tokens=1)
    steps.finish()
    steps.add("after", Prompt("x", whole, []), max_tokens=3)
    steps.finish(limit=200)


def test_the_reason_for_serving_plainly_is_kept(rounds: Rounds) -> None:
    prompts = rounds.members(histories=(300, 310, 320), blocks=(400, 150))
    reports = rounds.play(prompts, fidelity="fast", max_tokens=20).reports
    assert {r["fallback_reason"] for r in reports} <= {None, "not_enough_pages"}
