"""Backends by name, and refusals that say what is allowed."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.errors import ConfigError
from tokendance_engine.reuse.backends import GROUP, Backend, Piece, built_in, make_backend, names, registry
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


def test_a_large_round_shrinks_the_budget_of_the_default_down_to_eight_tokens_a_block() -> None:
    assert _of_each("master", 32, most=1000) == 32
    assert _of_each("master", 32, most=40) == 20
    assert _of_each("master", 32, most=2) == 8
    assert _of_each("master", 4, most=2) == 4
    assert _of_each("epic", 32, most=2) == 32


def _of_each(name: str, first: int, most: int) -> int:
    found = [Reused(0, 100, 0), Reused(100, 200, 100)]
    return int(make_backend(name, first, {}).within(found, most).select(found, 200).sum()) // 2


def test_only_the_default_is_not_served_at_a_loss_and_shares_pages() -> None:
    for kind in built_in():
        backend = make_backend(kind.name, 4, {})
        assert (backend.reference, backend.copies) == (kind.name != "master",) * 2


def test_epic_takes_its_budget_from_its_option_alone() -> None:
    assert make_backend("epic", 4, {}).select(FOUND, 100).sum() == 28 + 32
    assert make_backend("epic", 4, {"first": 5}).select(FOUND, 100).sum() == 10
    assert make_backend("epic", 4, {}).source == "alone"
    assert make_backend("epic", 4, {"source": "master"}).source == "master"


def test_identities_name_all_that_changes_what_is_computed() -> None:
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("master", 0, {}),
        ("master", 32, {}),
        ("all", 0, {}),
        ("epic", 0, {}),
        ("epic", 0, {"first": 4}),
        ("epic", 0, {"source": "master"}),
        ("cacheblend", 0, {}),
        ("cacheblend", 0, {"percent": 16}),
        ("cacheblend", 0, {"layer": 2}),
        ("cacheblend-blocks", 0, {}),
        ("cacheblend-blocks", 0, {"block": 8}),
    ]
    assert len({make_backend(*way).identity for way in ways}) == len(ways)
    assert make_backend("master", 32, {}).identity == make_backend("master", 0, {"first": 32}).identity
    assert make_backend("epic", 0, {}).identity == make_backend("epic", 32, {"first": 32}).identity


def piece(start: int, size: int, offset: int = 0) -> Piece:
    prompt = np.arange(start + size, dtype=np.int32)
    return Piece("a", prompt, start, start + size, offset, b"", 0, np.arange(start, start + size))


scored = st.lists(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=40), min_size=1, max_size=5)


@given(scored, st.integers(0, 100))
def test_cacheblend_takes_the_largest_deviations_of_the_member(
    scores: list[list[float]], percent: int
) -> None:
    pieces = [piece(100 * i, len(s)) for i, s in enumerate(scores)]
    arrays = [np.array(s, dtype=np.float32) for s in scores]
    masks = make_backend("cacheblend", 0, {"percent": percent}).choose(pieces, arrays)
    assert [m.shape for m in masks] == [a.shape for a in arrays]
    taken, whole = np.concatenate(masks), np.concatenate(arrays)
    assert taken.sum() == -(-len(whole) * percent // 100)
    if taken.any() and not taken.all():
        assert whole[taken].min() >= whole[~taken].max()


@given(scored, st.integers(0, 100), st.integers(1, 20), st.integers(0, 50))
def test_blocks_are_taken_whole_until_the_share_is_reached(
    scores: list[list[float]], percent: int, block: int, offset: int
) -> None:
    pieces = [piece(100 * i, len(s), offset * i) for i, s in enumerate(scores)]
    arrays = [np.array(s, dtype=np.float32) for s in scores]
    backend = make_backend("cacheblend-blocks", 0, {"percent": percent, "block": block})
    masks = backend.choose(pieces, arrays)
    count, whole = sum(int(m.sum()) for m in masks), sum(map(len, arrays))
    assert -(-whole * percent // 100) <= count
    assert count < -(-whole * percent // 100) + block
    for p, mask in zip(pieces, masks, strict=True):
        number = (p.offset + np.arange(len(p))) // block
        for each in set(number.tolist()):
            assert len(set(mask[number == each].tolist())) == 1, "a block was taken in part"


def test_the_block_with_the_largest_mean_is_taken_first() -> None:
    scores = np.array([9.0] + [0.0] * 15 + [1.0] * 16 + [0.5] * 16, dtype=np.float32)
    backend = make_backend("cacheblend-blocks", 0, {"percent": 30})
    (mask,) = backend.choose([piece(0, 48)], [scores])
    assert np.flatnonzero(mask).tolist() == list(range(16, 32))


def test_an_unknown_backend_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match=r"'mastr'.*allowed: " + ", ".join(names())):
        make_backend("mastr", 4, {})


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("master", "first"), ("all", "none"), ("cacheblend-blocks", "block, layer, percent, source")],
)
def test_an_unknown_option_is_refused_with_the_options_there_are(name: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"'frist' of backend '{name}'.*allowed: {allowed}$"):
        make_backend(name, 4, {"frist": 1})


@pytest.mark.parametrize("value", [-1, 1 << 21, 1.5, "3", None, True, [3]])
def test_an_option_out_of_range_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make_backend("master", 4, {"first": value})
    assert repr(value) in str(caught.value)
    assert "an integer from 0 to 1048576" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "value", "allowed"),
    [
        ("cacheblend", "percent", 101, "an integer from 0 to 100"),
        ("cacheblend", "layer", 0, "an integer from 1 to 1024"),
        ("cacheblend", "source", "moon", "one of alone, master"),
        ("epic", "source", 1, "one of alone, master"),
    ],
)
def test_every_option_has_a_range_of_its_own(name: str, option: str, value: Any, allowed: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{option!r} of backend {name!r} is {value!r}; allowed: {allowed}$"
    ):
        make_backend(name, 4, {option: value})


class Plain(Backend):
    name = "plain"


class Nameless:
    pass


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:X", "could not be loaded from 'no_such_module:X': ModuleNotFoundError"),
        (f"{__name__}:Nameless", "allowed: a subclass of Backend"),
        (f"{__name__}:Plain", "its class is called 'plain'; allowed: the name of its entry point"),
    ],
)
def test_a_broken_package_is_told_apart_from_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    point = EntryPoint("mine", value, GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    assert "mine" in names()
    with pytest.raises(ConfigError, match=says):
        make_backend("mine", 0, {})


def test_an_installed_backend_is_found_and_cannot_take_the_name_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [EntryPoint(name, f"{__name__}:Plain", GROUP) for name in ("plain", "master")]
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(points))
    monkeypatch.setattr(registry, "_loaded", {})
    assert type(make_backend("plain", 0, {})).__name__ == "Plain"
    assert type(make_backend("master", 0, {})).__name__ == "Master"
    with pytest.raises(ConfigError, match="allowed: none"):
        make_backend("plain", 0, {"first": 1})
