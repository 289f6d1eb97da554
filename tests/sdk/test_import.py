"""Importing the SDK costs nothing that an inactive engine plugin would notice."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tokendance_sdk

HEAVY = (
    "openai",
    "torch",
    "vllm",
    "tiktoken",
    "rich",
    "httpx",
    "langgraph",
    "transformers",
    "tokendance_engine",
)


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import tokendance_sdk",
        "import tokendance_sdk.protocol, tokendance_sdk.rounds_protocol",
        "from tokendance_sdk import Block, Layout, RoundPrompt, RoundReport, SEPARATOR, escape, unescape",
        "from tokendance_sdk.results import RoundResult; from tokendance_sdk import TokenDanceError",
    ],
)
def test_no_heavy_package_is_imported(statement: str) -> None:
    assert loaded_after(statement) & set(HEAVY) == set()


# What the time of an import follows, and the same on every machine; seconds are in `tokendance bench sdk`.
def third_party(statement: str) -> set[str]:
    own = {*sys.stdlib_module_names, "tokendance_sdk"}
    return {name for name in loaded_after(statement) - loaded_after("") - own if not name.startswith("_")}


def test_the_package_alone_imports_nothing() -> None:
    assert third_party("import tokendance_sdk") == set()


def test_prompts_and_reports_import_pydantic_alone() -> None:
    wanted = "from tokendance_sdk import Block, Layout, RoundPrompt, RoundReport, SEPARATOR, escape, unescape"
    pydantic = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    assert third_party(wanted) == pydantic


def test_the_client_imports_nothing_beyond_what_openai_does() -> None:
    client = third_party("from tokendance_sdk import TokenDance, AsyncTokenDance")
    assert client <= third_party("import openai")


def test_the_client_brings_openai_and_nothing_heavier() -> None:
    loaded = loaded_after("from tokendance_sdk import TokenDance, AsyncTokenDance")
    assert "openai" in loaded
    assert loaded & {"torch", "vllm", "tiktoken", "langgraph", "transformers", "tokendance_engine"} == set()


@pytest.mark.parametrize("name", tokendance_sdk.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(tokendance_sdk, name) is not None


def test_every_lazy_name_is_public_and_has_a_home() -> None:
    assert set(tokendance_sdk.__all__) == {"__version__", *tokendance_sdk._HOME}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        tokendance_sdk.Nope  # noqa: B018
