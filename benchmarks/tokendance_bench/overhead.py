"""What requests outside rounds pay for the plugin: two servers, one with it and one without, asked in turns.

Both are up all the time, bound to the same cores, with the same settings; of each pair of requests the same one goes to
both, one after the other, in random order, so that what else the machine does hits both alike. Answers are greedy and
must be identical. `slowdown` is the median of the pairs' ratios (with over without); `slowdown_upper95` its one-sided
95 % bound. Then a server that counts (see `hook_times`) says which share of the engine's steps its hooks take.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI

from tokendance_bench import stats
from tokendance_bench.options import about, model_of, parser, positive
from tokendance_bench.run import Run
from tokendance_bench.serving import SERVED_NAME, serving
from tokendance_bench.systems import SYSTEMS

KINDS = {"short": (60, 16), "long": (1500, 16)}
"""Kind of chat -> (words of the question, tokens of the answer)."""
COUNTED = ("steps", "step_seconds", "hook_seconds")
PREFIX_ENV = "TOKENDANCE_HOOK_TIMES"
"""As in `tokendance_engine.adapters.vllm.hook_times`."""
WITHOUT, WITH = SYSTEMS["vllm"], SYSTEMS["tokendance-balanced"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("overhead", __doc__ or "", "none", 1, ("--pairs 40 --model /path/to/model",))
    options.set_defaults(kv_gib=2)
    options.add_argument(
        "--pairs", type=positive, default=40, help="of each kind; at least 20 with --quick, too"
    )
    options.add_argument(
        "--warm-up", type=positive, default=3, help="pairs of each kind that are not counted"
    )
    args = options.parse_args(argv)
    if args.quick:
        args.pairs = min(args.pairs, 20)
    model, rng = model_of(args), random.Random(0)
    steps = len(KINDS) * (args.pairs + 1)
    with Run("overhead", args.out, headline, about(args), steps) as run:
        run.doing("starting two servers")
        with (
            serving(WITHOUT, model, args, args.out / "without.log") as without,
            serving(WITH, model, args, args.out / "with.log") as with_plugin,
        ):
            clients = {"without": _client(without), "with": _client(with_plugin)}
            for kind in KINDS:
                for number in range(-args.warm_up, args.pairs):
                    run.doing(f"{kind} chats")
                    row = pair(clients, kind, number, rng)
                    if number >= 0:
                        run.add(row, quiet=True)
        run.doing("starting a server that counts")
        for row in hook_shares(model, args):
            run.add(row)
    return 0


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", timeout=600, max_retries=0)


def question(kind: str, number: int) -> str:
    """A chat that no other pair asks: its first words already differ, so no prefix is cached."""
    rng = random.Random(f"{kind}:{number}")
    words = ("river", "stone", "green", "walk", "seven", "light", "paper", "house", "cold", "music", "bread")
    return " ".join(rng.choice(words) for _ in range(KINDS[kind][0])) + "\nWhat is this about?"


def ask(client: OpenAI, kind: str, number: int) -> tuple[float, str]:
    """(seconds, answer) of one greedy chat with an answer of fixed length."""
    tokens = KINDS[kind][1]
    started = time.perf_counter()
    answer = client.chat.completions.create(
        model=SERVED_NAME,
        messages=[{"role": "user", "content": question(kind, number)}],
        max_tokens=tokens,
        temperature=0,
        extra_body={"ignore_eos": True, "min_tokens": tokens},
    )
    return time.perf_counter() - started, answer.choices[0].message.content or ""


def pair(clients: dict[str, OpenAI], kind: str, number: int, rng: random.Random) -> dict[str, Any]:
    """The same chat to both servers, in random order."""
    order = list(clients)
    rng.shuffle(order)
    found = {name: ask(clients[name], kind, number) for name in order}
    return {
        "kind": kind,
        "pair": number,
        "first": order[0],
        "without_s": round(found["without"][0], 5),
        "with_s": round(found["with"][0], 5),
        "ratio": round(found["with"][0] / found["without"][0], 4),
        "identical": found["with"][1] == found["without"][1],
    }


def hook_shares(model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Share of the engine's steps that hooks took, for each kind of chat."""
    prefix = (args.out / "hook_times").resolve()
    for old in prefix.parent.glob("hook_times.*"):
        old.unlink()
    os.environ[PREFIX_ENV] = str(prefix)
    rows, before = [], dict.fromkeys(COUNTED, 0.0)
    try:
        with serving(WITH, model, args, args.out / "counting.log") as url:
            client = _client(url)
            for kind in KINDS:
                for number in range(max(5, args.pairs // 4)):
                    ask(client, kind, number)
                now = counts(prefix)
                steps, step_s, hook_s = (now[key] - before[key] for key in COUNTED)
                rows.append(
                    {
                        "kind": kind,
                        "hook_share_of_step": round(hook_s / step_s, 6),
                        "steps": int(steps),
                        "hook_us_per_step": round(hook_s * 1e6 / steps, 1),
                    }
                )
                before = now
    finally:
        del os.environ[PREFIX_ENV]
    return rows


def counts(prefix: Path) -> dict[str, float]:
    """The counts of all processes of the engine (each writes its own file now and then), added up."""
    total = dict.fromkeys(COUNTED, 0.0)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        each = json.loads(path.read_text(encoding="utf-8"))
        for key in COUNTED:
            total[key] += each[key]
    if not total["steps"]:
        raise RuntimeError(f"no engine wrote {prefix}.*; is the plugin of this version in the server?")
    return total


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worse kind's slowdown, the hooks' share, and whether all answers were identical."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        ratios = [row["ratio"] for row in rows if row["kind"] == kind and "ratio" in row]
        if len(ratios) > 1:
            found[f"slowdown_{kind}"] = round(statistics.median(ratios), 4)
            found[f"slowdown_{kind}_upper95"] = round(stats.upper95(ratios), 4)
            found[f"slowdown_{kind}_spread"] = round(stats.spread(ratios), 4)
    every = [row["ratio"] for row in rows if "ratio" in row]
    if len(every) > 1:
        found["slowdown"] = round(statistics.median(every), 4)
        found["slowdown_upper95"] = round(stats.upper95(every), 4)
        found["pairs"] = len(every)
        found["outputs_identical"] = all(row["identical"] for row in rows if "ratio" in row)
    shares = [row["hook_share_of_step"] for row in rows if "hook_share_of_step" in row]
    if shares:
        found["hook_share_of_step"] = max(shares)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
