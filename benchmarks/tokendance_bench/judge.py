"""How often a judge chooses otherwise when the candidates' KV is reused: flips against full prefill.

In every recorded round some judges read all candidates (the agents' outputs), each in an order of its own, and name the
best; the choice is the likeliest number at that place, so nothing is sampled. For scale: how often full prefill itself
chooses otherwise when the same judge reads the candidates in another order.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from tokendance_sdk import Block, Layout, RoundPrompt
from tokendance_sdk.workload import Workload

from tokendance_bench import stats
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, of_workload, parser, positive, workload_of
from tokendance_bench.run import Run
from tokendance_bench.tokenizing import context_of

SYSTEMS: dict[str, dict[str, Any]] = {
    "balanced": {"fidelity": "balanced"},
    "fast": {"fidelity": "fast"},
}
JUDGES = (
    "You are a strict examiner. You look for mistakes in reasoning.",
    "You are a patient teacher. You like explanations that a child could follow.",
    "You are an engineer. You trust numbers more than words, and short answers more than long ones.",
    "You are a lawyer. You ask what was proved and what was only said.",
    "You are an editor. You care for clear language and a good order of thoughts.",
)
OPENING = "The best answer is candidate "


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("judge", __doc__ or "", "debate-mmlu7", 7, ("--rounds 24",))
    options.set_defaults(block_tokens=150)
    options.add_argument("--rounds", type=positive, default=8, help="the first so many recorded rounds")
    options.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    args = options.parse_args(argv)
    engine = Engine(
        model_of(args), kv_gib=args.kv_gib, dtype=args.dtype, max_model_len=context_of(model_of(args))
    )
    workload = workload_of(args, engine, args.rounds)
    numbers = range(min(2, args.rounds) if args.quick else args.rounds)

    def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**of_workload(workload), **flip_rates(rows)}

    with Run("judge", args.out, headline, about(args), len(numbers) * (1 + len(args.systems))) as run:
        for number in numbers:
            run.doing(f"round {number}")
            for row in judged(engine, workload, number, args.systems):
                run.add(row)
    return 0


def flip_rates(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per system the share of choices that flipped, and its Wilson interval."""
    found: dict[str, Any] = {}
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system]
        flips, choices = sum(row["flips"] for row in mine), sum(row["choices"] for row in mine)
        low, high = stats.wilson(flips, choices)
        key = system.replace(" ", "_")
        found |= {
            "choices": choices,
            f"flip_rate_{key}": round(flips / choices, 3),
            f"flip_rate_{key}_interval": [round(low, 3), round(high, 3)],
        }
    return found


def judged(engine: Engine, workload: Workload, number: int, systems: Sequence[str]) -> list[dict[str, Any]]:
    """One recorded round: flips of every system against full prefill."""
    outputs = list(workload.rounds[number].outputs.values())
    candidates = [Block(text, str(n + 1)) for n, text in enumerate(outputs)]
    prompts, others = (
        [engine.prompt(prompt) for prompt in asked(candidates, seed)] for seed in (number, number + 1000)
    )
    exact, gaps, _ = choices(engine, prompts, len(candidates), None)
    found = {"other order": choices(engine, others, len(candidates), None)}
    for system in systems:
        tag = {"round_id": f"judge:{number}", **SYSTEMS[system]}
        found[system] = choices(engine, prompts, len(candidates), tag)
    return [
        {
            "round": number,
            "system": system,
            "choices": len(exact),
            "flips": sum(a != b for a, b in zip(exact, chosen, strict=True)),
            "reused": reused,
            # Log-probability between full prefill's first and second choice: what a flip has to overcome.
            "median_gap": round(statistics.median(gaps), 3),
        }
        for system, (chosen, _, reused) in found.items()
    ]


def asked(candidates: Sequence[Block], seed: int) -> list[RoundPrompt]:
    """The judges' prompts; every judge reads the candidates in an order of its own."""
    return [
        RoundPrompt.assemble(
            f"judge{n}",
            who,
            candidates,
            Layout.shuffled(seed),
            task=f"Which of the {len(candidates)} candidates gave the best answer? Name its number.",
            label="\nCandidate {owner}:\n",
        )
        for n, who in enumerate(JUDGES)
    ]


def choices(
    engine: Engine, prompts: Sequence[Prompt], candidates: int, tag: dict[str, Any] | None
) -> tuple[list[int], list[float], int]:
    """(candidate of each judge, from 0; gap to its second choice; mean reused tokens), from empty caches."""
    opening = engine.encode(OPENING)
    numbers = [engine.encode(OPENING + str(n + 1))[len(opening) :] for n in range(candidates)]
    if any(len(tokens) != 1 for tokens in numbers):
        raise ValueError(f"got numbers of several tokens {numbers}; allowed: a tokenizer with one a digit")
    engine.forget()
    outcome = engine.round(prompts, tag, answers=[[*opening, numbers[0][0]]] * len(prompts))
    engine.scheduler.check()
    at_number = torch.stack([steps[len(opening)] for steps in outcome.logprobs])
    best = at_number[:, [tokens[0] for tokens in numbers]].topk(2, dim=-1)
    reports = [report for report in outcome.reports if report]
    reused = round(statistics.mean(report["reused_tokens"] for report in reports)) if reports else 0
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    return best.indices[:, 0].tolist(), gaps, reused


if __name__ == "__main__":
    raise SystemExit(main())
