"""What a round reused, as a value and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokendance_sdk.protocol import MemberReport
from tokendance_sdk.rounds_response import RoundTotals

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("prompt_tokens", "cached_tokens", "reused_tokens", "recomputed_tokens", "fresh_tokens")


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The report of a whole round (token counts; milliseconds).

    Attributes:
        totals: sums over the members, longest times.
        members: one report for each member that the server reported on, in request order. From a plain server
            they are made from `usage`: what it says is cached, the rest as fresh.
        failed: agent -> why it has no answer.
        wall_ms: from sending the round to having all of it, seen by the client.
        plain: True when the server knows nothing of rounds.

    `str(report)` and rich's `print(report)` show a table.
    """

    totals: RoundTotals
    members: tuple[MemberReport, ...]
    failed: dict[str, str]
    wall_ms: float
    plain: bool = False

    def __rich__(self) -> Table:
        from rich.table import Table

        source = "plain server" if self.plain else f"{self.totals.agents} agents"
        table = Table(title=f"round {self.totals.round_id}: {source}, {self.wall_ms:.0f} ms")
        table.add_column("agent")
        for column in _COLUMNS:
            table.add_column(column.removesuffix("_tokens"), justify="right")
        table.add_column("note")
        for member in self.members:
            note = "" if member.fallback_reason is None else member.fallback_reason.value
            table.add_row(member.agent_id, *(str(getattr(member, c)) for c in _COLUMNS), note)
        for agent, reason in self.failed.items():
            table.add_row(agent, *("-" for _ in _COLUMNS), f"failed: {reason[:60]}")
        table.add_section()
        table.add_row("all", *(str(getattr(self.totals, c)) for c in _COLUMNS), "")
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self.__rich__())
        return capture.get().rstrip()
