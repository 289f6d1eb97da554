"""One self-contained HTML page of all results below a folder, with pictures; PNG files stand beside the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tokendance_bench.report import write_report


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; see `--help`."""
    options = argparse.ArgumentParser(
        prog="tokendance bench report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  tokendance bench report bench-results\n"
        "  tokendance bench report docs/benchmarks --to /tmp/report.html",
    )
    options.add_argument(
        "folder",
        type=Path,
        help="holds NAME/results.json of each benchmark (or NAME.json, as docs/benchmarks does)",
    )
    options.add_argument("--to", type=Path, help="the page; default: FOLDER/report.html")
    args = options.parse_args(argv)
    if not args.folder.is_dir():
        options.error(f"no folder {args.folder}; allowed: one that `tokendance bench` wrote results to")
    print(f"written to {write_report(args.folder, args.to or args.folder / 'report.html')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
