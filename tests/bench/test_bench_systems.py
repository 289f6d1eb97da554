"""Names of systems, and what they say about versions that lack something."""

from __future__ import annotations

import argparse

import pytest
from tokendance_bench import systems
from tokendance_bench.systems import SYSTEMS, System


def test_names_and_aliases_are_found() -> None:
    assert systems.named("tokendance") is SYSTEMS["tokendance-balanced"]
    assert systems.named("vllm").tag is None
    assert SYSTEMS["vllm-shared-first"].layout.before_history


def test_a_wrong_name_lists_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match="allowed: vllm, lmcache"):
        systems.named("tokendance", ("vllm", "lmcache"))


def test_a_system_that_this_version_lacks_says_what_is_missing() -> None:
    assert systems.missing(SYSTEMS["tokendance-fast"]) is None
    assert systems.missing(System("x", "", {"mood": "good"})) == "requests have no field 'mood'"
    assert systems.missing(System("x", "", {"backend": "no-such"})) == "there is no backend 'no-such'"


@pytest.mark.parametrize("text", ["http://a/v1", "a=ftp://b", "=http://b", "vllm=http://b"])
def test_a_bad_url_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        systems.at_url(text)


def test_a_url_becomes_a_system_of_ordinary_requests() -> None:
    found = systems.at_url("other=http://localhost:8000/v1/")
    assert (found.name, found.server, found.url) == ("other", "url", "http://localhost:8000/v1")
    assert found.tag is None


def test_systems_option_reads_names_and_urls() -> None:
    options = argparse.ArgumentParser()
    systems.add_option(options, ("vllm",), ("vllm", "tokendance-fast"))
    systems.add_urls(options)
    args = options.parse_args(["--systems", "tokendance-fast", "--url", "o=http://h/v1"])
    assert [system.name for system in systems.chosen(options, args)] == ["tokendance-fast", "o"]
    with pytest.raises(SystemExit):
        systems.chosen(options, options.parse_args(["--systems", "lmcache"]))


def test_quick_has_systems_of_its_own_unless_they_are_named() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true")
    systems.add_option(options, ("vllm", "lmcache"), ("vllm", "lmcache"), ("vllm",))
    for given, names in (([], ["vllm", "lmcache"]), (["--quick"], ["vllm"])):
        args = options.parse_args(given)
        assert [system.name for system in systems.chosen(options, args)] == names == args.systems
    args = options.parse_args(["--quick", "--systems", "lmcache"])
    assert [system.name for system in systems.chosen(options, args)] == ["lmcache"]


def test_keys_of_headlines_carry_no_dashes() -> None:
    assert [
        SYSTEMS[name].key for name in ("tokendance-fast-copy", "vllm-shared-first", "serial-balanced")
    ] == [
        "fast_copy",
        "shared_first",
        "serial_balanced",
    ]
