"""A tiny engine inside the test process: logits, pages and both halves of the connector are at hand.

A process holds one engine. Modules named `engine_*` ask for another one with `SETTINGS`; `test_other_engines.py` runs
each of them in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rounds import Rounds

sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def rounds(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Rounds:
    """A llama-shaped model of three layers, float32, pages of 32 tokens, 2,048 positions, unless `SETTINGS` differ."""
    modules = {item.module for item in request.session.items if "inproc" in str(item.path)}
    wanted = [dict(getattr(module, "SETTINGS", {})) for module in modules]
    assert all(settings == wanted[0] for settings in wanted), "one engine per process"
    shape = wanted[0].pop("shape", "llama")
    folder = wanted[0].pop("models", None) or tmp_path_factory.mktemp("tiny")
    return Rounds(str(make_tiny_model(shape, folder / shape)), **wanted[0])


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
