"""Random sessions through the scheduler half: after every step the accounts agree and pages hold what they should."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm")

from planned_rounds import MARKER
from scheduled_rounds import Loop
from test_prepared_rounds import sessions
from tiny_rounds import Prompt, private

FIDELITIES = st.sampled_from(["fast", "fast", "balanced", "exact"])
PLACEMENTS = st.sampled_from([None, None, None, "copy", "shared"])
BACKENDS = st.sampled_from([None, None, None, "all", "epic", "cacheblend", "cacheblend-blocks"])
EXECUTIONS = st.sampled_from(["collective", "collective", "serial"])


@given(sessions(), st.sampled_from([61, 401]), st.data())
@settings(deadline=None, max_examples=40)
def test_whatever_happens_everybody_is_served_with_its_own_tokens(
    session: list[list[Prompt]], pages: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        loop = Loop(patch, pages)
        for turn, prompts in enumerate(session):
            play(loop, turn, prompts, data)
        loop.run(400)
        assert loop.side.reset()
        assert loop.manager.block_pool.get_num_free_blocks() == pages - 1


def play(loop: Loop, turn: int, prompts: list[Prompt], data: st.DataObject) -> None:
    """A round with some trouble: members leave, workers fail, and plain requests get in between."""
    requests = [
        loop.add(
            prompt,
            f"a{i}",
            answer=data.draw(st.sampled_from([1, 3, 20])),
            round_size=len(prompts),
            fidelity=data.draw(FIDELITIES),
            placement=data.draw(PLACEMENTS),
            backend=data.draw(BACKENDS),
            execution=data.draw(EXECUTIONS),
        )
        for i, prompt in enumerate(prompts)
    ]
    if data.draw(st.booleans()):
        loop.add([private(8, 0, 40 * turn), *prompts[0][1:], MARKER], "plain", tagged=False)
    for _ in range(data.draw(st.integers(0, 4))):
        loop.broken = data.draw(st.integers(0, 9)) == 0
        loop.step()
    loop.broken = False
    leaves = data.draw(st.integers(0, 5))
    if leaves < len(requests) and not requests[leaves].is_finished():
        loop.abort(requests[leaves])
    loop.run(400)
