"""What the SDK itself costs: CPU of the client per agent and round, and bytes on the wire and in checkpoints.

The server answers at once, in another process. `added` is the program's CPU less that of the same program with a model
that is not there (the framework), less that of sending the finished requests with the OpenAI client alone (the line).
Negative where one request instead of one per agent saves more than the SDK costs. No vLLM.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokendance_bench.environment import environment
from tokendance_bench.instant_server import instant_server, seen
from tokendance_bench.overhead_setting import Setting
from tokendance_bench.overhead_ways import Play, Way, bare, ways
from tokendance_bench.results import print_rows, write_results

PACKAGES = ("openai", "langgraph", "autogen-agentchat", "ag2")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = argparse.ArgumentParser(prog="tokendance bench overhead", description=__doc__)
    options.add_argument("--agents", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3, help="of one repetition")
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--out", type=Path, default=Path("bench-results") / "overhead")
    options.add_argument("--quick", action="store_true", help="headline keys only")
    args = options.parse_args(argv)
    with instant_server() as url:
        at = Setting(url, args.agents, args.rounds)
        repeats = 3 if args.quick else args.repeats
        line = cpu(bare(at), at, repeats)
        rows = []
        for name, way in ways(at).items():
            rows.append(row(name, way, at, repeats, line[0], ordinary=not args.quick))
            print_rows(name, rows[-1:])
        headers = seen(url)["header_bytes"]
    headline: dict[str, Any] = {
        "agents": args.agents,
        "rounds": args.rounds,
        "one_bare_request_cpu_ms": line[0],
        "most_added_cpu_ms_per_agent_and_round": max(each["added_ms"] for each in rows),
        "header_bytes": headers,
    }
    if importlib.util.find_spec("langgraph.checkpoint.sqlite"):
        from tokendance_bench.checkpoint_size import checkpoint_headline

        headline |= checkpoint_headline()
    versions = {name: _version(name) for name in PACKAGES}
    path = write_results(args.out, headline, rows, environment(client_versions=versions))
    print_rows("CPU of the client, ms per agent and round", rows)
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0


def row(name: str, way: Way, at: Setting, repeats: int, line: float, *, ordinary: bool) -> dict[str, Any]:
    """One way: medians (milliseconds of CPU per agent and round), and the spread of the first."""
    ours, low, high, wall = cpu(way.ours, at, repeats)
    framework = cpu(way.instant, at, repeats)[0] if way.instant else 0.0
    alone = cpu(way.ordinary, at, min(3, repeats))[0] if way.ordinary and ordinary else None
    return {
        "way": name,
        "cpu_ms": ours,
        "from": low,
        "to": high,
        "framework_ms": framework,
        "added_ms": round(ours - framework - line, 3),
        "ordinary_requests_ms": alone,
        "wall_ms_per_round": round(wall * at.agents, 1),
    }


def cpu(play: Play, at: Setting, repeats: int) -> tuple[float, float, float, float]:
    """(median, least, most) CPU and median wall time of this process: ms per agent and round, after a warm-up."""
    play()
    spent, wall = [], []
    for _ in range(repeats):
        started, began = time.process_time(), time.perf_counter()
        play()
        spent.append((time.process_time() - started) * 1e3 / (at.agents * at.rounds))
        wall.append((time.perf_counter() - began) * 1e3 / (at.agents * at.rounds))
    return (
        round(statistics.median(spent), 3),
        round(min(spent), 3),
        round(max(spent), 3),
        statistics.median(wall),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
