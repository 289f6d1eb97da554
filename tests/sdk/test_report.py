"""A report is readable by people."""

from __future__ import annotations

import io

from rich.console import Console
from tokendance_sdk.protocol import FallbackReason, MemberReport
from tokendance_sdk.results import AgentError, AgentResult, collect

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
ROUND = collect(
    "sim:3",
    [
        AgentResult("bob", 1, error=AgentError("out of memory")),
        AgentResult(
            "ann",
            0,
            (CHOICE,),
            {"prompt_tokens": 120, "completion_tokens": 1, "total_tokens": 121},
            MemberReport(
                round_id="sim:3",
                agent_id="ann",
                prompt_tokens=120,
                reused_tokens=93,
                fresh_tokens=27,
                fallback_reason=FallbackReason.ALONE,
            ),
        ),
    ],
    wall_ms=41.7,
)


def test_the_table_shows_every_agent_its_numbers_and_why_not() -> None:
    lines = str(ROUND.report).splitlines()
    (ann,) = [line for line in lines if "ann" in line]
    (bob,) = [line for line in lines if "bob" in line]
    (total,) = [line for line in lines if " all " in line]
    assert [cell.strip() for cell in ann.strip("│").split("│")] == [
        "ann",
        "120",
        "0",
        "93",
        "0",
        "27",
        "alone",
    ]
    assert "failed: out of memory" in bob
    assert "93" in total
    assert "round sim:3: 2 agents, 42 ms" in lines[0]


def test_rich_prints_it_as_a_table() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(ROUND.report)
    assert "recomputed" in console.file.getvalue()  # type: ignore[attr-defined]


def test_results_are_in_request_order_whatever_order_they_come_in() -> None:
    assert [result.agent_id for result in ROUND] == ["ann", "bob"]
    assert (ROUND.report.totals.agents, ROUND.report.totals.failed) == (2, 1)
