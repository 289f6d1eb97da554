"""What the SDK itself costs: CPU of the client per agent and round, and bytes on the wire and in checkpoints.

The server answers at once, in another process. `added` is the program's CPU less that of the same program with a model
that is not there (the framework), less that of sending the finished requests with the OpenAI client alone (the line).
Where the framework costs much more than the SDK, its model calls are noted and played again without it for `added`.
Each is the least of several repetitions, taken in turns: other programs on the machine only ever add. No vLLM.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokendance_sdk.joining import joining

from tokendance_bench.environment import environment
from tokendance_bench.instant_server import instant_server, seen
from tokendance_bench.options import plain_parser, positive
from tokendance_bench.run import Run
from tokendance_bench.sdk_setting import Setting
from tokendance_bench.sdk_ways import Kind, Play, Recorder, Way, bare, ways

PACKAGES = ("openai", "langgraph", "autogen-agentchat", "ag2")
# Beside what the SDK's modules import themselves.
IMPORTS = (
    "import tokendance_sdk",
    "import pydantic",
    "from tokendance_sdk import RoundPrompt, RoundReport",
    "import openai",
    "from tokendance_sdk import TokenDance",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = plain_parser("sdk", __doc__ or "", ("--agents 8 --rounds 2",))
    options.add_argument("--agents", type=positive, default=64)
    options.add_argument("--rounds", type=positive, default=3, help="of one repetition")
    options.add_argument("--repeats", type=positive, default=7)
    args = options.parse_args(argv)
    once: dict[str, Any] = {"agents": args.agents, "rounds": args.rounds}

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**once, "most_added_cpu_ms_per_agent_and_round": max(each["added_ms"] for each in rows)}

    versions = {name: _version(name) for name in PACKAGES}
    about = environment(client_versions=versions, complete=False)
    with instant_server() as url, Run("sdk", args.out, headline, about, 1) as run:
        at = Setting(url, args.agents, args.rounds)
        repeats = 3 if args.quick else args.repeats
        line = measure({"line": bare(at)}, at, repeats)["line"]
        once["one_bare_request_cpu_ms_per_agent"] = line.least
        found = ways(at)
        run.expect(len(found))
        for name, way in found.items():
            run.doing(name)
            run.add(row(name, way, at, repeats, line.least))
        run.doing("imports and checkpoints")
        once["header_bytes"] = seen(url)["header_bytes"]
        once["import_cpu_ms"] = {what: import_ms(what) for what in IMPORTS}
        if importlib.util.find_spec("langgraph.checkpoint.sqlite"):
            from tokendance_bench.checkpoint_size import checkpoint_headline

            once.update(checkpoint_headline())
    return 0


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU of this process, ms per agent and round, and wall time, ms per round."""

    least: float
    median: float
    wall: float


def row(name: str, way: Way, at: Setting, repeats: int, line: float) -> dict[str, Any]:
    """One way: milliseconds of CPU per agent and round; `added_ms` as the module says."""
    plays = {"ours": way.ours, "instant": way.instant, "ordinary": way.ordinary}
    whole = {kind: play for kind, play in plays.items() if play is not None}
    spent = measure(whole, at, repeats if way.calls is None else min(3, repeats))
    framework = spent["instant"].least if "instant" in spent else 0.0
    added = spent["ours"].least - framework - line
    if way.calls is not None:
        way.calls(calls := Recorder())
        again = {"ours": joining, "instant": Recorder().instant}
        alone = measure({name: partial(_run, calls, at, kind) for name, kind in again.items()}, at, repeats)
        added = alone["ours"].least - alone["instant"].least - line
    return {
        "way": name,
        "added_ms": round(added, 3),
        "cpu_ms": spent["ours"].least,
        "median_ms": spent["ours"].median,
        "framework_ms": framework,
        "ordinary_requests_ms": spent["ordinary"].least if "ordinary" in spent else None,
        "wall_ms_per_round": spent["ours"].wall,
    }


def _run(calls: Recorder, at: Setting, kind: Kind) -> None:
    asyncio.run(calls.play(at, kind))


def measure(plays: Mapping[str, Play], at: Setting, repeats: int) -> dict[str, Spent]:
    """What each play spends, after a warm-up."""
    for play in plays.values():
        play()
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in plays}
    for _ in range(repeats):
        for kind, play in plays.items():
            cpu, wall = time.process_time(), time.perf_counter()
            play()
            taken[kind].append((time.process_time() - cpu, time.perf_counter() - wall))
    share = 1e3 / (at.agents * at.rounds)
    return {
        kind: Spent(
            round(min(cpu for cpu, _ in each) * share, 3),
            round(statistics.median(cpu for cpu, _ in each) * share, 3),
            round(statistics.median(wall for _, wall in each) * 1e3 / at.rounds, 1),
        )
        for kind, each in taken.items()
    }


def import_ms(statement: str) -> float:
    """CPU of one import in a fresh interpreter, ms, the least of three; without the interpreter's start."""
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    took = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    )
    return round(min(float(done.stdout) for done in took) * 1e3, 1)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
