"""One tiny float32 engine inside the test process: logits, pages and both halves of the connector are at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rounds import Rounds

sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    """A llama-shaped model of three layers, pages of 32 tokens, 2,048 positions."""
    model = make_tiny_model("llama", tmp_path_factory.mktemp("tiny") / "llama")
    return Rounds(str(model))


@pytest.fixture(autouse=True)
def _clean(rounds: Rounds) -> Iterator[None]:
    """Every test starts with empty caches and leaves the connector's books in order."""
    rounds.forget()
    free = rounds.pool.get_num_free_blocks()
    yield
    rounds.scheduler.check()
    assert not rounds.scheduler._members, "a finished request is still a member"
    rounds.forget()
    assert rounds.pool.get_num_free_blocks() == free, "pages were lost"
