"""Pictures of results, in the paper's form where it has one: PNG files drawn from rows alone.

`FIGURES` lists them; `draw` makes one. Needs matplotlib (the `bench` extra), which is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendance_bench.figures import answers, load, memory, time
from tokendance_bench.figures.style import NothingToDrawError, canvas, drop, save

__all__ = ["FIGURES", "Figure", "NothingToDrawError", "draw", "of"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture.

    Attributes:
        name: of its file.
        benchmark: whose rows it shows.
        title: what it shows, in words that need no paper.
        panels: how many plots stand side by side.
        paint: rows -> the plots.
        paper: the paper's figure ("10"), or "".
        said: what the paper reports there.
        differs: how ours was made otherwise.
    """

    name: str
    benchmark: str
    title: str
    panels: int
    paint: Callable[[Sequence[Row], Sequence[Any]], None]
    paper: str = ""
    said: str = ""
    differs: str = ""


FIGURES: tuple[Figure, ...] = (
    Figure("prefill", "prefill", "Seconds until every agent of a round has its first token", 1, time.prefill,
           said="Up to 1.9x over per-request CacheBlend in the prefill phase.",
           differs="Histories are in the prefix cache before the clock starts. Our exact rivals are plain vLLM, and "
           "plain vLLM with the shared blocks put first."),
    Figure("figure-02", "motivation", "Latency and KV in use: rounds of agents, and as many independent requests", 2,
           load.motivation, "2",
           "10 sessions of 25 agents take 41.5 GiB (99.3 % of the pool), 250 independent requests 24.8 GiB (59.2 %); "
           "P99 latency 136 s against 125 s (Qwen2.5-14B, A100 80 GB).",
           "Fewer sessions and agents, a pool scaled down with them; plain vLLM on a CPU."),
    Figure("figure-03", "similarity", "How alike two agents' KV is, page by page", 1, memory.similarity, "3",
           "91 % to 97 % of the pages are alike in an 8-agent round.", "Measured on SmolLM2, pages of 32 tokens."),
    Figure("figure-10", "capacity", "Round latency by agents, and agents within a latency target by load", 2,
           load.capacity, "10",
           "Target 1,500 ms. On GenerativeAgents with Qwen2.5-7B at QPS 16: TokenDance 8 agents, CacheBlend 4, vLLM 2; "
           "up to 2.7x the agents of vLLM with prefix caching.",
           "The target is plain vLLM's own median round latency with 3 agents, fixed before anything else runs; loads "
           "are multiples of what plain vLLM serves then."),
    Figure("pages", "capacity", "Agents that run at once in a fixed KV space", 1, memory.pages,
           said="KV of a round of 10 agents: 1.8 dense caches instead of 10 at 7B (a formula, from the compression).",
           differs="Counted in a real engine: agents in vLLM's batch at the same time."),
    Figure("figure-11", "collective", "A whole round at once over the same reuse one request at a time", 1,
           load.collective, "11",
           "Peak 2.57x at 10 agents and QPS 1; 3 agents 1.17x, 5 agents 1.31x, 15 agents 1.61x, 20 agents 1.73x; 1.3x "
           "to 1.5x at QPS 16.",
           "Loads are multiples of what the serial way serves alone. The serial way is our own implementation."),
    Figure("figure-12", "storage", "How small a stored agent gets, and how many of its pages changed", 2,
           memory.storage, "12",
           "11.2x (7B) and 17.5x (14B) compression; 53.2 and 59.6 changed pages of 500 to 700 per agent. The second "
           "pair does not close: 59.6 of 500 to 700 pages is 8x to 12x.",
           "Bit-exact mirrors: what differs at all is stored."),
    Figure("figure-13", "restore", "Milliseconds to bring an agent's KV back, fused and dense", 2, memory.restore, "13",
           "10 agents: dense 0.59 ms, fused 0.43 ms per mirror; 1 agent: fused 0.13 to 0.18 ms; 1.3x to 2.6x faster.",
           "CPU memory instead of GPU memory; no load besides."),
    Figure("figure-14", "fidelity", "Rounds before the first different greedy answer (dashed: all that were played)", 1,
           answers.greedy, "14",
           "Rounds until the first different answer: none within the trace in 3 of 8 scenarios, 3.3 % to 11.9 % fewer "
           "rounds in the others.",
           "A model of 135 million parameters, whose greedy answers flip easily: plain vLLM with the requests in "
           "another order stands beside it."),
    Figure("fidelity", "fidelity", "How far next-token distributions are from full prefill", 2, answers.fidelity,
           differs="Answers are forced to the recorded ones, so that every token counts and errors do not hide behind "
           "the first difference."),
    Figure("flips", "fidelity", "How often reuse changes what a debater decides", 1, answers.flips,
           differs="Decided after the recorded reasoning. Full prefill with requests in another order stands beside "
           "it: what flips anyway."),
    Figure("pareto", "pareto", "Fidelity against computed tokens, every backend and setting", 1, answers.pareto),
    Figure("judge", "judge", "How often a judge's choice flips", 1, answers.judge,
           differs="Full prefill with another order of the candidates stands beside it: what flips anyway."),
    Figure("histories", "histories", "Rounds whose histories the prefix cache cannot keep", 1, time.histories),
    Figure("overhead", "overhead", "Requests outside rounds: with the plugin over without", 1, time.overhead,
           said="No performance loss outside rounds (a claim, without a measurement).",
           differs="Measured pair by pair on two servers that run side by side."),
    Figure("layouts", "layouts", "Which order of a prompt is fastest", 1, time.layouts),
    Figure("steady", "steady", "Hundreds of rounds: hit rate, memory, latency", 1, time.steady),
)  # fmt: skip


def of(benchmark: str) -> list[Figure]:
    """The pictures of a benchmark's rows."""
    return [figure for figure in FIGURES if figure.benchmark == benchmark]


def draw(figure: Figure, rows: Sequence[Row], path: Path) -> Path:
    """Draw a picture of `rows` to `path` (PNG) and return it.

    Raises:
        NothingToDrawError: the rows lack what it shows.
        ModuleNotFoundError: matplotlib is not installed.
    """
    sheet, axes = canvas(figure.panels)
    try:
        figure.paint(rows, axes)
        return save(sheet, figure.title, path)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, NothingToDrawError):
            raise
        raise NothingToDrawError(f"{figure.name}: the rows lack what it shows ({error!r})") from error
    finally:
        drop(sheet)
