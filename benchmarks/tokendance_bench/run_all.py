"""Run the benchmarks one after another, each in a process of its own: never two of them at a time.

Goes on after a failure; what failed is said at the end, and the exit status is then 1. Ctrl-C ends the running one,
whose finished rows stay, and leaves the others out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tokendance_bench.registry import BENCHMARKS, available

PLAIN = ("sdk",)
"""Benchmarks without a model: they do not take its options."""


@dataclass(frozen=True, slots=True)
class Done:
    """How one benchmark ended."""

    name: str
    status: int | None
    seconds: float

    @property
    def result(self) -> str:
        """For people."""
        return {0: "done", None: "not in this version", 130: "interrupted"}.get(
            self.status, f"failed with status {self.status}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run them; see `--help`."""
    options = argparse.ArgumentParser(
        prog="tokendance bench all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  tokendance bench all --quick\n  tokendance bench all --only prefill fidelity --out /tmp/r",
    )
    names = tuple(BENCHMARKS)
    options.add_argument("--quick", action="store_true", help="headline keys only")
    options.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="one folder a benchmark in it"
    )
    options.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these")
    options.add_argument("--skip", nargs="+", choices=names, default=[], metavar="NAME", help="not these")
    options.add_argument("--model", help="a Hugging Face folder; default: the demo model")
    options.add_argument("--dtype", help="model dtype")
    args = options.parse_args(argv)
    wanted = [name for name in args.only or names if name not in args.skip]
    shared = ["--quick"] if args.quick else []
    of_model = [
        text for key in ("model", "dtype") if getattr(args, key) for text in (f"--{key}", getattr(args, key))
    ]
    done: list[Done] = []
    for name in wanted:
        more = [] if name in PLAIN else of_model
        done.append(run(name, ["--out", str(args.out / name), *shared, *more]))
        if done[-1].status == 130:
            break
    _say(done)
    reported = report(args.out)
    failed = [each for each in done if each.status]
    if any(each.status == 130 for each in failed):
        return 130
    return 1 if failed or reported else 0


def run(name: str, arguments: Sequence[str]) -> Done:
    """Run one benchmark to its end; a missing one is not run."""
    if name not in available():
        return Done(name, None, 0.0)
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "tokendance_bench.cli", name, *arguments])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the signal too, and is writing what it has
        status = 130
    except BaseException:  # our own end (a signal's SystemExit): it must not go on without us
        process.terminate()
        process.wait()
        raise
    return Done(name, 128 - status if status < 0 else status, time.monotonic() - started)


def report(out: Path) -> int:
    """Write the report of what is there; 1 if that fails, which must not hide the results."""
    done = subprocess.run([sys.executable, "-m", "tokendance_bench.cli", "report", str(out)], check=False)
    return int(done.returncode != 0)


def _say(done: Sequence[Done]) -> None:
    table = Table("benchmark", "result", "minutes", title="all benchmarks")
    for each in done:
        table.add_row(each.name, each.result, f"{each.seconds / 60:.1f}", style="red" if each.status else "")
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
