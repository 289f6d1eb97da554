"""`tokendance bench NAME`: one command for every benchmark."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

NAMES = {
    "prefill": "time to prefill one round, histories cached, against plain vLLM",
    "capacity": "agents running at once in a fixed KV space, live pages of a round",
    "histories": "rounds whose histories vLLM's prefix cache cannot keep, computed again or brought back",
    "overhead": "CPU of the SDK per agent and round, bytes on the wire and in checkpoints; no vLLM",
    "fidelity": "KL and top-1 to full prefill over recorded answers; drift over rounds",
    "judge": "how often a judge chooses otherwise among shuffled candidates when their KV is reused",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that the first argument names with the rest of the arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help") or arguments[0] not in NAMES:
        for name, question in NAMES.items():
            print(f"  {name:<10} {question}")
        print("\nexample: tokendance bench prefill --agents 5 --quick")
        if arguments and arguments[0] not in ("-h", "--help"):
            print(f"\nunknown benchmark {arguments[0]!r}; allowed: {', '.join(NAMES)}", file=sys.stderr)
            return 2
        return 0
    return int(importlib.import_module(f"tokendance_bench.{arguments[0]}").main(arguments[1:]))
