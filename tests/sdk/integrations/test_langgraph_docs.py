"""The page on LangGraph says what is: its snippets run, in order, as one program."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from scripted_server import Scripted, serving

PAGE = Path(__file__).resolve().parents[3] / "docs" / "langgraph.md"


def test_the_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 6
    # Where LangGraph looks up the names in the states' annotations.
    module = sys.modules["langgraph_page"] = ModuleType("langgraph_page")

    def script(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        return {"content": f"{str(messages[0]['content'])[:20]} says something that the others quote."}

    with serving(Scripted(script)) as server:
        for number, snippet in enumerate(snippets):
            code = snippet.replace("http://localhost:8000/v1", server.base_url)
            exec(compile(code, f"{PAGE.name}, snippet {number}", "exec"), module.__dict__)
    names = vars(module)
    assert [output["agent"] for output in names["final"]["outputs"]] == ["ann", "bob"]
    rounds = [len(agents) for _, agents in server.rounds()]
    assert rounds == [3, 3, 3, 3, 1, 2]
    assert [len(request.blocks) for request in server.requests()][:2] == [0, 3]
    assert "speak" in capsys.readouterr().out
