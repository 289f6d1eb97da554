"""Write a workload of any size, for sweeps: agents, rounds, history, block length, shared share, order of speaking.

The words are common ones in random order, the same for the same seed. It is checked by the schema of recorded
workloads, so every benchmark reads it: `--workload FILE`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokendance_sdk.workload import SCHEMA, Workload, parse_workload

from tokendance_bench.options import positive

Order = Literal["same", "rotating", "random"]
ORDERS: tuple[Order, ...] = ("same", "rotating", "random")
# Short and common: most tokenizers have one token for each.
WORDS = (
    *("the", "and", "they", "that", "with", "from", "this", "have", "what", "when", "your", "some", "time"),
    *("people", "about", "would", "there", "their", "which", "could", "other", "after", "first", "never"),
    *("where", "these", "right", "think", "three", "small", "every", "found", "still", "between", "name"),
    *("should", "home", "big", "give", "air", "line", "set", "own", "under", "read", "last", "let", "keep"),
    *(
        "light",
        "kind",
        "off",
        "need",
        "house",
        "picture",
        "try",
        "again",
        "animal",
        "point",
        "mother",
        "world",
    ),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a synthetic workload, in words (about as many tokens).

    Attributes:
        history: of every agent's private history.
        block: of every output.
        common: 0 to 1: which share of an output's words is the same in all agents' outputs of that round.
        order: `speaking_order` of the rounds: always the same, one place further each round, or random.
        uneven: how much histories differ: agent i's is shorter by i times so many words.
    """

    agents: int = 10
    rounds: int = 4
    history: int = 600
    block: int = 150
    common: float = 0.0
    order: Order = "same"
    uneven: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: at least 1")
        if self.history - self.uneven * (self.agents - 1) < 0 or self.uneven < 0:
            raise ValueError(
                f"histories of {self.history} words, each {self.uneven} shorter than the one before, end before the "
                f"last of {self.agents} agents; allowed: at most {self.history // max(1, self.agents - 1)}"
            )
        if not 0 <= self.common <= 1:
            raise ValueError(f"common is {self.common}; allowed: 0 to 1")
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; allowed: {', '.join(ORDERS)}")

    @property
    def shared_share(self) -> float:
        """Share of the first agent's prompt that is outputs, which all agents read."""
        shared = self.agents * self.block
        return shared / (self.history + shared)


def block_for(share: float, agents: int, history: int) -> int:
    """Words of an output with which outputs are `share` of a prompt.

    Raises:
        ValueError: a share that no block gives.
    """
    if not 0 < share < 1 or history < 1:
        raise ValueError(
            f"shared share is {share} with histories of {history} words; allowed: between 0 and 1, and some"
        )
    return max(1, round(share * history / ((1 - share) * agents)))


def lines(shape: Shape) -> list[str]:
    """The lines of a workload file; the same for the same shape."""
    rng = random.Random(f"synthetic:{shape.seed}")
    ids = [f"agent{n:02d}" for n in range(shape.agents)]
    head = {
        "schema": SCHEMA,
        "name": f"synthetic-a{shape.agents}-h{shape.history}-b{shape.block}-{shape.order}",
        "title": "Random common words",
        "kind": "profiles",
        "language": "en",
        "source": {"generator": "tokendance bench synthetic", "seed": shape.seed},
        "licence": "Apache-2.0",
        "assembly": f"{shape}",
        "agents": ids,
        "rounds": shape.rounds,
    }
    agents = [
        {"kind": "agent", "id": who, "system": f"You are {who}.", "history": _history(rng, shape, n)}
        for n, who in enumerate(ids)
    ]
    rounds = [_round(rng, shape, ids, number) for number in range(shape.rounds)]
    return [json.dumps(each) for each in (head, *agents, *rounds)]


def _history(rng: random.Random, shape: Shape, place: int) -> list[str]:
    words = shape.history - shape.uneven * place
    return [_text(rng, words)] if words else []


def _round(rng: random.Random, shape: Shape, ids: Sequence[str], number: int) -> dict[str, Any]:
    common = round(shape.block * shape.common)
    same = _text(rng, common)
    outputs = {who: " ".join(filter(None, [_text(rng, shape.block - common), same])) for who in ids}
    order = list(ids)
    if shape.order == "rotating":
        turn = number % len(ids)
        order = [*ids[turn:], *ids[:turn]]
    elif shape.order == "random":
        rng.shuffle(order)
    return {
        "kind": "round",
        "index": number,
        "task": "Say what comes next.",
        "outputs": outputs,
        "speaking_order": order,
    }


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def synthetic(shape: Shape) -> Workload:
    """The workload itself, checked by the schema."""
    return parse_workload(lines(shape), "synthetic")


def main(argv: Sequence[str] | None = None) -> int:
    """Write one; see `--help`."""
    default = Shape()
    options = argparse.ArgumentParser(
        prog="tokendance bench synthetic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  tokendance bench synthetic 32.jsonl --agents 32 --history 800 --block 100\n"
        "  tokendance bench prefill --workload 32.jsonl --agents 32 --rounds 2",
    )
    options.add_argument("file", type=Path, help="where to; ends in .jsonl")
    for name in ("agents", "rounds", "block"):
        options.add_argument(f"--{name}", type=positive, default=getattr(default, name))
    options.add_argument("--history", type=int, default=default.history, help="words of a private history")
    options.add_argument(
        "--uneven", type=int, default=0, help="words by which each history is shorter than the last"
    )
    options.add_argument(
        "--shared-share", type=float, default=0.0, help="of an output, the same in all of a round"
    )
    options.add_argument("--order", choices=ORDERS, default="same", help="who speaks when")
    options.add_argument("--seed", type=int, default=0)
    args = vars(options.parse_args(argv))
    file: Path = args.pop("file")
    share = args.pop("shared_share")
    try:
        if share is not None:
            args["block"] = block_for(share, args["agents"], args["history"])
        shape = Shape(**args)
    except ValueError as error:
        options.error(str(error))
    workload = synthetic(shape)
    file.write_text("\n".join(lines(shape)) + "\n", encoding="utf-8")
    print(f"{workload.name}: outputs are {shape.shared_share:.0%} of a prompt; written to {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
