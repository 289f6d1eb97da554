"""A KV space so small that masters and members compete for it."""

from __future__ import annotations

import pytest
from rounds import Rounds

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
