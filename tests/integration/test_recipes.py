"""Every recipe runs as it stands, and reuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sdk_environment import needs, run
from vllm_server import REPOSITORY, Server

pytestmark = pytest.mark.server
RECIPES = REPOSITORY / "examples" / "recipes"
AGENTS = ["isabella", "klaus", "maria"]


def lines(text: str) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in text.splitlines() if line]


def test_openai_client_with_headers_only(server: Server) -> None:
    pytest.importorskip("openai")
    out = run(RECIPES / "openai_header.py", "--base-url", f"{server.url}/v1", python=Path(sys.executable))
    answers = lines(out)
    assert [a["agent"] for a in answers] == AGENTS
    assert all(a["text"] and "<TTSEP>" not in a["text"] for a in answers)
    # requests that travel alone may miss each other on a busy machine, never all of them
    assert max(a["report"]["group_size"] for a in answers) > 1
    assert sum(a["report"]["reused_tokens"] for a in answers) > 0


def test_chat_openai_with_extra_body(server: Server) -> None:
    pytest.importorskip("langchain_openai")
    out = run(RECIPES / "chat_openai.py", "--base-url", f"{server.url}/v1", python=Path(sys.executable))
    answers = lines(out)
    assert [a["agent"] for a in answers] == AGENTS
    assert all(a["text"] for a in answers)
    assert all(a["cached_tokens"] > 0 for a in answers)  # nothing of these prompts was sent before


def test_pydantic_ai_agents_are_gathered(server: Server) -> None:
    needs("pydantic_ai")
    first, second = lines(run(RECIPES / "pydantic_ai_agents.py", "--base-url", f"{server.url}/v1"))
    assert (first["round"], second["round"]) == ("recipe-pydantic-ai:0", "recipe-pydantic-ai:1")
    assert list(first["outputs"]) == list(second["outputs"]) == AGENTS
    assert first["reused_tokens"] > 0


def test_curl(server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    done = subprocess.run(
        [str(RECIPES / "curl.sh"), f"{server.url}/v1"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *chats, whole = lines(done.stdout)
    assert len(chats) == 3
    assert max(chat["tokendance"]["group_size"] for chat in chats) > 1
    assert sum(chat["tokendance"]["reused_tokens"] for chat in chats) > 0
    assert [member["agent_id"] for member in whole["results"]] == AGENTS
    assert whole["tokendance"]["reused_tokens"] > 0
