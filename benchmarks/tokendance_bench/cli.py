"""`tokendance bench`: the list of benchmarks, one of them, all of them, or a report of what they wrote."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from rich.console import Console
from rich.table import Table
from tokendance_sdk.errors import TokenDanceError

from tokendance_bench.children import ChildError
from tokendance_bench.registry import available

COMMANDS = {
    "all": "Every benchmark after another; goes on after a failure, and writes the report.",
    "report": "One HTML page with figures from the results below a folder.",
    "synthetic": "Write a workload of any size: agents, history, blocks, shared share, order.",
}
NAMES = {**{name: each.question for name, each in available().items()}, **COMMANDS}
"""What may stand after `tokendance bench`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the first argument names with the rest of the arguments; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        _list()
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in NAMES:
        print(f"unknown benchmark {name!r}; allowed: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    path = f"tokendance_bench.run_{name}" if name in COMMANDS else available()[name].path
    try:
        return int(importlib.import_module(path).main(rest))
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tokendance_bench"):
            raise
        extra = "bench" if name == "report" else "engine-cpu"
        print(
            f"{name} needs {error.name!r}, which is not here; pip install 'tokendance[{extra}]'",
            file=sys.stderr,
        )
        return 1
    except (TokenDanceError, ChildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _list() -> None:
    table = Table("benchmark", "question it answers", "paper's figure", box=None, pad_edge=False)
    for each in available().values():
        table.add_row(each.name, each.question, each.figure)
    for name, what in COMMANDS.items():
        table.add_row(name, what, "", style="dim")
    console = Console()
    console.print(table)
    console.print(
        "\nexamples:\n"
        "  tokendance bench prefill --agents 5 --quick\n"
        "  tokendance bench all --quick --out bench-results\n"
        "  tokendance bench report bench-results\n"
        "options of one: tokendance bench NAME --help",
        markup=False,
        highlight=False,
    )


def _on_terminate(number: int, frame: FrameType | None) -> None:
    # As an exception, so that rows are kept and servers are taken down on the way out.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_terminate)
    raise SystemExit(main())
