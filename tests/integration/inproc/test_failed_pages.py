"""Pages that the worker failed to fill hold garbage; nobody may ever find them."""

from __future__ import annotations

import pytest
from rounds import Rounds
from steps import Steps

pytestmark = pytest.mark.server
TAG = {"round_id": "s:1", "round_size": 2, "fidelity": "fast"}


@pytest.mark.parametrize("when", ["aborted", "computed again in chunks"])
def test_nobody_hits_pages_of_a_failed_load(rounds: Rounds, when: str) -> None:
    prompts = rounds.members(histories=(500, 510))
    truth = rounds.plain(prompts)
    steps = Steps(rounds)
    with steps.chunks(64 if when != "aborted" else 0):
        with rounds.broken("collect_members", RuntimeError("injected")) as calls:
            for i, prompt in enumerate(prompts):
                steps.add(f"m{i}", prompt, TAG)
            while not calls:
                steps.step()
        if when == "aborted":
            steps.abort("m0", "m1")
        for i, prompt in enumerate(prompts):
            steps.add(f"plain{i}", prompt)
        steps.finish()
    assert [steps.tokens(f"plain{i}") for i in range(2)] == truth
