"""Backends by name, and refusals that say what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokendance_engine.errors import ConfigError
from tokendance_engine.reuse.backends import make_backend, names
from tokendance_engine.reuse.selection import Reused

FOUND = [Reused(2, 30, 0), Reused(40, 80, 50)]


@pytest.mark.parametrize("name", names())
def test_every_registered_backend_answers_within_the_reused_segments(name: str) -> None:
    backend = make_backend(name, 4, {})
    assert backend.name == name
    mask = backend.select(FOUND, 100)
    inside = np.zeros(100, dtype=bool)
    inside[2:30] = inside[40:80] = True
    assert mask.shape == (100,)
    assert not (mask & ~inside).any()


def test_master_takes_its_budget_from_fidelity_unless_an_option_names_one() -> None:
    assert make_backend("master", 4, {}).select(FOUND, 100).sum() == 8
    assert make_backend("master", 4, {"first": 9}).select(FOUND, 100).sum() == 18
    assert make_backend("master", 4, {"first": 0}).select(FOUND, 100).sum() == 0


def test_only_the_reference_is_served_at_a_loss() -> None:
    assert make_backend("all", 4, {}).reference
    assert not make_backend("master", 4, {}).reference


def test_an_unknown_backend_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match=r"'mastr'.*allowed: " + ", ".join(names())):
        make_backend("mastr", 4, {})


@pytest.mark.parametrize(("name", "allowed"), [("master", "first"), ("all", "none")])
def test_an_unknown_option_is_refused_with_the_options_there_are(name: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"'frist' of backend '{name}'.*allowed: {allowed}$"):
        make_backend(name, 4, {"frist": 1})


@pytest.mark.parametrize("value", [-1, 1 << 21, 1.5, "3", None, True, [3]])
def test_an_option_out_of_range_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make_backend("master", 4, {"first": value})
    assert repr(value) in str(caught.value)
    assert "an integer from 0 to 1048576" in str(caught.value)
