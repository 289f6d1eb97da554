"""Every benchmark of the suite: one line each, in the order in which `tokendance bench all` runs them.

A benchmark is a module of this package whose `main(argv)` writes `OUT/results.json` (see `run.Run`). To add one, add a
line here; `figures` may draw it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: on the command line, and of its results' folder.
        question: what it answers.
        figure: the paper's figures it stands beside ("10"), or "".
        module: in `tokendance_bench`; default: its name.
        draft: its module has not run on an engine yet, so it is not offered.
    """

    name: str
    question: str
    figure: str = ""
    module: str = ""
    draft: bool = False

    @property
    def path(self) -> str:
        """Dotted name of its module."""
        return f"tokendance_bench.{self.module or self.name}"

    @property
    def available(self) -> bool:
        """Whether this version of the package has it."""
        return not self.draft and importlib.util.find_spec(self.path) is not None


_ALL = (
    Benchmark("prefill", "How long does a round's prefill take, histories cached, system by system?"),
    Benchmark("motivation", "How much KV do rounds take on plain vLLM, beside independent requests?", "2"),
    Benchmark("similarity", "How alike are the members' KV caches, page by page?", "3, 12"),
    Benchmark(
        "capacity", "How many agents does a server carry within a latency target, and a KV space?", "10"
    ),
    Benchmark("collective", "What is a round worth over the same reuse one request at a time?", "11"),
    Benchmark(
        "storage", "How small do stored members get, and do they come back bit for bit?", "12", draft=True
    ),
    Benchmark("restore", "What does the fused restore save over a dense one?", "13"),
    Benchmark(
        "histories", "What if the prefix cache cannot keep the histories: compute again or bring back?"
    ),
    Benchmark("fidelity", "How far are answers from full prefill, in one round and over many?", "14"),
    Benchmark("judge", "How often does a judge choose otherwise when candidates' KV is reused?"),
    Benchmark("pareto", "What does each backend's fidelity cost in computed tokens?"),
    Benchmark("overhead", "What do requests outside rounds pay for the plugin?", "section 4.1"),
    Benchmark("layouts", "Which order of a prompt is best when: history first, shared first, own orders?"),
    Benchmark("steady", "Do hit rate, memory and latency stay flat over hundreds of rounds?", draft=True),
    Benchmark("sdk", "What does the client library cost: CPU, bytes on the wire, in checkpoints?"),
)

BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _ALL}


def available() -> dict[str, Benchmark]:
    """The benchmarks that this version of the package has, in order."""
    return {name: each for name, each in BENCHMARKS.items() if each.available}
