"""One configuration from four sources: precedence, refusals, and that every source knows every setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendance_engine.config import EngineConfig, config_table, env_name, flag_name, parse, settings
from tokendance_engine.errors import ConfigError
from tokendance_sdk.protocol import Limits


def test_defaults_apply_when_nothing_is_given() -> None:
    config = EngineConfig.resolve(environ={})
    assert (config.gather_ms, config.gather_cap_ms, config.default_fidelity) == (100.0, 2000.0, "balanced")
    assert config.limits() == Limits()


def test_flags_win_over_extra_config_which_wins_over_environment_which_wins_over_defaults() -> None:
    environ = {"TOKENDANCE_GATHER_MS": "1", "TOKENDANCE_TAIL_TOKENS": "2", "TOKENDANCE_FAST_TOKENS": "3"}
    config = EngineConfig.resolve(
        flags={"gather_ms": 30.0}, extra={"gather_ms": 20, "tail_tokens": 20}, environ=environ
    )
    assert (config.gather_ms, config.tail_tokens, config.fast_tokens, config.balanced_tokens) == (
        30,
        20,
        3,
        32,
    )


def test_a_config_survives_the_trip_through_vllms_extra_config() -> None:
    config = EngineConfig.resolve(flags={"master_share": 0.25, "kernel": "torch"}, environ={})
    environ = {"TOKENDANCE_MASTER_SHARE": "0.9"}
    assert EngineConfig.from_extra_config(config.to_extra_config(), environ) == config


def test_a_config_is_read_from_an_absent_extra_config_and_the_environment() -> None:
    assert EngineConfig.from_extra_config(None, {"TOKENDANCE_MAX_AGENTS": "7"}).max_agents == 7


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("gather_ms", "soon", "a number from 0 to 60000"),
        ("gather_ms", "-1", "a number from 0 to 60000"),
        ("gather_ms", "nan", "a number from 0 to 60000"),
        ("master_share", 1.5, "a number from 0 to 1"),
        ("tail_tokens", "1.5", "a whole number, at least 0"),
        ("tail_tokens", True, "a whole number, at least 0"),
        ("max_agents", 5000, "a whole number from 1 to 4096"),
        ("default_fidelity", "perfect", "one of exact, balanced, fast"),
        ("kernel", 3, "one of auto, torch, triton, triton-interpret"),
        ("placement", "near", "one of auto, shared, copy"),
        ("max_skipped_positions", -1, "a whole number, at least 0"),
        ("execution", "both", "one of collective, serial"),
        ("tiers", "disk", "JSON, or none"),
        ("tiers", "[1]", "JSON, or none"),
        ("secret_file", "", "a path, or none"),
        ("cpu_bytes", -1, "a whole number, at least 0"),
        ("max_segments", None, "a whole number, at least 1"),
    ],
)
def test_a_bad_value_names_source_value_and_what_is_allowed(name: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(name, value, "SOURCE")
    assert str(caught.value) == f"SOURCE: got {value!r}; allowed: {rule}"


@pytest.mark.parametrize("value", ["", "mastr"])
def test_an_unknown_backend_is_refused_at_start_with_the_names_of_all(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.resolve(flags={"default_backend": value}, environ={})
    assert str(caught.value) == (
        f"tokendance option 'default_backend': backend {value!r} is unknown; "
        "allowed: all, cacheblend, cacheblend-blocks, epic, master"
    )
    assert EngineConfig.resolve(flags={"default_backend": "epic"}, environ={}).default_backend == "epic"


def test_a_bad_environment_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="TOKENDANCE_GATHER_MS: got 'x'"):
        EngineConfig.resolve(environ={"TOKENDANCE_GATHER_MS": "x"})


@pytest.mark.parametrize("source", ["flags", "extra"])
def test_an_unknown_setting_lists_the_known_ones(source: str) -> None:
    with pytest.raises(ConfigError, match="'speed': no such setting; allowed: gather_ms, "):
        EngineConfig.resolve(**{source: {"speed": 1}}, environ={})


def test_an_extra_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 3; allowed: an object"):
        EngineConfig.from_extra_config({"tokendance": 3}, {})


def test_every_setting_is_in_the_docs_table_with_flag_environment_and_default() -> None:
    rows = config_table().splitlines()[2:]
    assert len(rows) == len(settings())
    for each, row in zip(settings(), rows, strict=True):
        for part in (each.name, flag_name(each.name), env_name(each.name), str(each.default)):
            assert f"`{part}`" in row


@given(st.floats(0, 60_000))
def test_numbers_given_as_text_keep_their_value(value: float) -> None:
    assert EngineConfig.resolve(environ={"TOKENDANCE_GATHER_MS": repr(value)}).gather_ms == value
