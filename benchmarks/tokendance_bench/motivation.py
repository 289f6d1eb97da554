"""Why rounds are hard on an ordinary server: KV in use and latency of sessions of agents, and of independent requests.

Plain vLLM, one server, a KV space that the contexts of all sessions fill. The same number of requests of the same
lengths at the same mean rate: once as rounds, whose members arrive together, round after round; once each by itself.
The share of KV in use is what the server's own metrics say, read many times a second.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from openai import AsyncOpenAI
from tokendance_sdk.workload import Workload

from tokendance_bench import load, stats
from tokendance_bench.load import arrivals, distinct
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.run import Run
from tokendance_bench.serving import PAGE, SERVED_NAME, serving
from tokendance_bench.systems import SYSTEMS
from tokendance_bench.tokenizing import Tokens

_USAGE = re.compile(r"^vllm:(?:gpu_|kv_)?cache_usage_perc\{[^}]*\}\s+([0-9.eE+-]+)", re.MULTILINE)
_PAUSE_SECONDS = 0.1
KINDS = ("rounds", "independent")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("motivation", __doc__ or "", "ga-village10-newcomers", 10, ("--sessions 4 --agents 5",))
    options.set_defaults(block_tokens=100, history_tokens=400)
    options.add_argument("--sessions", type=positive, default=4)
    options.add_argument("--rounds", type=positive, default=2, help="rounds of every session")
    options.add_argument("--answer-tokens", type=positive, default=32, help="forced length of answers")
    options.add_argument(
        "--rate", type=float, default=0.0, help="requests per second; 0: as many as the server can"
    )
    options.add_argument(
        "--holds", type=float, default=1.0, help="KV space, as a multiple of all sessions' contexts"
    )
    args = options.parse_args(argv)
    if args.quick:
        args.sessions, args.agents = min(args.sessions, 2), min(args.agents, 5)
    tokens = Tokens.of(model_of(args))
    workload = workload_of(args, tokens, args.rounds + 2)
    sessions = [distinct(workload, f"s{n}") for n in range(args.sessions)]
    contexts = context_tokens(tokens, sessions[0], args.rounds, args.answer_tokens)
    pages = int(args.holds * args.sessions * sum(-(-size // PAGE) for size in contexts))
    longest = -(-max(contexts) // PAGE)  # vLLM wants one context of the greatest length to fit
    more = ("--num-gpu-blocks-override", str(max(pages, longest) + 1), "--max-model-len", str(longest * PAGE))
    requests = args.sessions * args.rounds * args.agents

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), "kv_pages": int(more[1]) - 1, **compared(rows)}

    with Run("motivation", args.out, headline, about(args), 2 * (requests + 1)) as run:
        rate = args.rate
        for kind in KINDS:
            run.doing(f"{kind}, starting")
            with serving(SYSTEMS["vllm"], model_of(args), args, args.out / f"{kind}.log", more) as url:
                rate = rate or alone(url, sessions[0], args)  # both kinds arrive at the same rate
                run.doing(kind)
                with watched(url) as usage:
                    latencies = asyncio.run(send(url, kind, sessions, args, rate))
            for index, latency in enumerate(latencies):
                run.add({"kind": kind, "index": index, "latency_s": round(latency, 3)}, quiet=True)
            run.add(
                {
                    "kind": kind,
                    "peak_kv_share": round(max(usage), 4),
                    "mean_kv_share": round(statistics.fmean(usage), 4),
                    "requests_per_s": round(rate, 4),
                }
            )
    return 0


def context_tokens(tokens: Tokens, workload: Workload, rounds: int, answer: int) -> list[int]:
    """Tokens of the contexts of one session's agents in its last round, answers included."""
    prompts = (tokens.prompt(workload.prompt(agent, rounds)) for agent in workload.agents)
    return [len(prompt.tokens) + answer for prompt in prompts]


def alone(url: str, workload: Workload, args: Any) -> float:
    """Requests per second that the server serves when one round follows another."""
    offer = load.Offer(0.0, 1, 1, first=1, answer_tokens=args.answer_tokens)
    warm = load.measure(url, SYSTEMS["vllm"], SERVED_NAME, _marked(workload), offer, "alone")
    return len(workload.agents) / float(load.summary(warm)["latency_s"])


def _marked(workload: Workload) -> Workload:
    return replace(distinct(workload, "alone"), rounds=distinct(workload, "alone").rounds[:2])


async def send(url: str, kind: str, sessions: Sequence[Workload], args: Any, rate: float) -> list[float]:
    """Latency of every request, in order of their arrival."""
    prompts = [
        [session.prompt(agent, number).plain_messages for agent in session.agents]
        for number in range(1, args.rounds + 1)
        for session in sessions
    ]
    groups = prompts if kind == "rounds" else [[one] for group in prompts for one in group]
    per_group = len(groups[0])
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=3600, max_retries=0) as client:
        started = time.monotonic()

        async def one(messages: Any, at: float) -> float:
            await client.chat.completions.create(
                model=SERVED_NAME,
                messages=messages,
                temperature=0,
                max_tokens=args.answer_tokens,
                extra_body={"ignore_eos": True, "min_tokens": args.answer_tokens},
            )
            return time.monotonic() - started - at

        tasks = []
        async with asyncio.TaskGroup() as tasks_of:
            for group, at in zip(groups, arrivals(rate / per_group, len(groups), 0), strict=True):
                await asyncio.sleep(max(0.0, at - (time.monotonic() - started)))
                tasks += [tasks_of.create_task(one(messages, at)) for messages in group]
    return [task.result() for task in tasks]


def usage_of(metrics: str) -> float | None:
    """Share of KV pages in use, 0 to 1, from the text of vLLM's `/metrics`; None if it does not say."""
    found = _USAGE.findall(metrics)
    return max(map(float, found)) if found else None


@contextmanager
def watched(url: str) -> Iterator[list[float]]:
    """The shares of KV in use while the block runs; filled by a thread, complete when the block is left."""
    shares: list[float] = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_PAUSE_SECONDS):
            with suppress(OSError):
                with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as answer:
                    share = usage_of(answer.read().decode())
                if share is not None:
                    shares.append(share)

    thread = threading.Thread(target=watch, name="kv-usage", daemon=True)
    thread.start()
    try:
        yield shares
    finally:
        done.set()
        thread.join()


def compared(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """P99 latency and peak KV of both kinds, and their ratios."""
    found: dict[str, float] = {}
    for kind in KINDS:
        latencies = [row["latency_s"] for row in rows if row["kind"] == kind and "latency_s" in row]
        if latencies:
            found[f"p99_latency_s_{kind}"] = round(stats.quantile(latencies, 0.99), 3)
        for row in rows:
            if row["kind"] == kind and "peak_kv_share" in row:
                found[f"peak_kv_share_{kind}"] = row["peak_kv_share"]
    for key in ("p99_latency_s", "peak_kv_share"):
        if found.get(f"{key}_independent") and f"{key}_rounds" in found:
            found[f"{key}_rounds_over_independent"] = round(
                found[f"{key}_rounds"] / found[f"{key}_independent"], 3
            )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
