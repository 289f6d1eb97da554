"""Shell completion: what a shell is told to do, and what bash then offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("tokendance")

pytestmark = pytest.mark.skipif(not COMMAND.exists(), reason="the command is not installed here")


def run(words: str, **environment: str) -> str:
    """What the command prints when a shell asks it how `words` go on; the last word is the one being typed."""
    asked = {"_TOKENDANCE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    count = {"COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        [str(COMMAND)], env={**os.environ, **asked, **count, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tokendance ", ["serve", "status", "bench", "replay", "demo", "model"]),
        ("tokendance model s", ["smollm2"]),
        ("tokendance replay ga-ville3", ["ga-ville3-meet-and-greet", "ga-ville3-valentine"]),
        ("tokendance replay x --fidelity b", ["balanced"]),
        ("tokendance replay x --layout ", ["canonical", "self_last", "rotated", "shared_first"]),
        ("tokendance bench pre", ["prefill"]),
    ],
)
def test_words_are_completed(words: str, offered: list[str]) -> None:
    assert sorted(run(words).split()) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_common_shell_gets_a_script(shell: str) -> None:
    done = subprocess.run(
        [str(COMMAND)],
        env={**os.environ, "_TOKENDANCE_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_TOKENDANCE_COMPLETE" in done.stdout


def test_bash_itself_completes_after_sourcing_the_script() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash on this machine")
    script = (
        f'source <(_TOKENDANCE_COMPLETE=source_bash "{COMMAND}")\n'
        "COMP_WORDS=(tokendance repl); COMP_CWORD=1\n"
        f'_tokendance_completion "{COMMAND}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["replay"]
