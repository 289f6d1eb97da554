"""Bytes that stored members take: every workload, one round and eight, the paper's layout beside ours.

Rounds run in an engine inside this process (context of all rounds, short blocks), so what is stored is what the engine
captured: plans, corrections, decoded tokens and all. Every capture is re-made from the store and compared, bit for
bit, with the pages it was read from. Bytes do not depend on weights: the model is a tiny random one unless `--model` is
given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokendance_sdk.workload import Context, known_workloads, load_workload
from tokendance_sdk.workload_cut import Cut, cut

from tokendance_bench.captured import Captured
from tokendance_bench.environment import environment
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import parser
from tokendance_bench.results import print_rows, write_results
from tokendance_bench.tiny import tiny_model

QUICK = ("debate-math4", "ga-ville3-valentine", "dev-humaneval4")
HURRICANE = "as-hurricane-profiles32"
LONGEST = 16384


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("storage", __doc__ or "", "all", 64)
    options.set_defaults(block_tokens=64, kv_gib=2)
    options.add_argument("--rounds", type=int, default=8, help="of each workload, as far as it goes")
    options.add_argument("--fidelities", nargs="+", default=["fast", "balanced"])
    options.add_argument("--answer-tokens", type=int, default=8)
    args = options.parse_args(argv)
    names = [args.workload] if args.workload != "all" else list(QUICK) if args.quick else known_workloads()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or tiny_model(Path(folder) / "tiny")
        engine = Engine(
            model,
            kv_gib=args.kv_gib,
            dtype=args.dtype,
            max_num_seqs=64,
            max_model_len=LONGEST if args.model is None else 8192,
            tokendance={"cpu_bytes": 8 << 30},
        )
        captured = Captured.watch(engine)
        rows = [synthetic(engine, captured, args)]
        rows += hurricane(engine, captured, args)
        for name in names:
            for fidelity in args.fidelities[:1] if args.quick else args.fidelities:
                rows += of_workload(engine, captured, args, name, fidelity)
                print_rows(f"{name}, {fidelity}", rows[-2:])
    headline = headline_of(rows, captured)
    where = environment(model=args.model or "tiny random llama", dtype=args.dtype, seed=0)
    path = write_results(args.out, headline, rows, where)
    print_rows("headline", [headline])
    print(f"written to {path}")
    return 0 if captured.wrong == 0 else 1


def synthetic(engine: Engine, captured: Captured, args: Any, agents: int = 10) -> dict[str, Any]:
    """Random tokens: ten members of whose tokens 8 % are their own."""
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    blocks, end = [text(372) for _ in range(10)], text(16)
    prompts = []
    for i in range(agents):
        tokens, boundaries = text(200 + i), []
        for block in blocks:
            boundaries.append(len(tokens))
            tokens += block
        prompts.append(Prompt(f"a{i}", tokens + end, [*boundaries, len(tokens)]))
    return play(engine, captured, args, "synthetic", "fast", [prompts])[0]


def hurricane(engine: Engine, captured: Captured, args: Any) -> list[dict[str, Any]]:
    """The fixed point: 32 agents, blocks of at most 200 tokens, one round, `fast`."""
    prompts = prompts_of(engine, args, HURRICANE, 1, 200, "window")
    return play(engine, captured, args, f"{HURRICANE}, blocks of 200", "fast", prompts)[:1]


def of_workload(
    engine: Engine, captured: Captured, args: Any, name: str, fidelity: str
) -> list[dict[str, Any]]:
    """One workload after its first and its last round."""
    prompts = prompts_of(engine, args, name, args.rounds, args.block_tokens, "transcript")
    return play(engine, captured, args, name, fidelity, prompts)


def prompts_of(
    engine: Engine, args: Any, name: str, rounds: int, block: int, context: Context
) -> list[list[Prompt]]:
    """Prompts of rounds 1 to `rounds`, as far as there are recorded ones and they fit."""
    whole = load_workload(name)
    rounds = min(rounds, len(whole.rounds) - 1)
    size = Cut(
        agents=min(args.agents, len(whole.agents)),
        rounds=rounds + 1,
        history_tokens=args.history_tokens,
        block_tokens=block,
    )
    made = cut(whole, size, engine.encode, engine.tokenizer.decode)
    longest = (
        engine.llm.model_config.max_model_len - args.answer_tokens - 600
    )  # fillers and skipped positions
    prompts = []
    for t in range(1, rounds + 1):
        each = [engine.prompt(made.prompt(agent, t, context=context)) for agent in made.agents]
        if max(len(p.tokens) for p in each) > longest:
            break
        prompts.append(each)
    return prompts


def play(
    engine: Engine, captured: Captured, args: Any, name: str, fidelity: str, rounds: list[list[Prompt]]
) -> list[dict[str, Any]]:
    """Play rounds of one session; a row after the first and after the last of them."""
    engine.forget()
    rows = []
    for number, prompts in enumerate(rounds, 1):
        captured.keep = number == 1 and len(prompts) <= 10
        captured.kept.clear()
        before = captured.wrong
        how = {"round_id": f"s:{number}", "fidelity": fidelity}
        reports = engine.round(prompts, how, max_tokens=args.answer_tokens).reports
        engine.drain()
        if number in (1, len(rounds)):
            reused = sum(r["reused_tokens"] for r in reports if r is not None)
            row = {"workload": name, "fidelity": fidelity, "round": number, **sizes(captured.family())}
            row |= {"reused_tokens": reused, "wrong_rows": captured.wrong - before}
            ratio, per_mirror = captured.paper() if captured.keep else (None, None)
            rows.append(row | {"paper_layout_ratio": ratio, "paper_layout_mirror_ratio": per_mirror})
    return rows


def sizes(family: Any) -> dict[str, Any]:
    """What a family takes, against what it must."""
    ratios = sorted(m.ratio for m in family.mirrors.values())
    changed = sorted(m.changed / max(1, m.blocks) for m in family.mirrors.values())
    per_block = np.sum([m.per_block for m in family.mirrors.values()], axis=0)
    return {
        "agents": len(family.mirrors),
        "tokens": sum(m.tokens for m in family.mirrors.values()),
        "own_share": round(family.own_share, 4),
        "dense_bytes": family.dense_bytes,
        "stored_bytes": family.stored_bytes,
        "ratio": round(family.ratio, 3),
        "ratio_over_bound": round(family.ratio / family.bound, 4),
        "stored_over_own": round(family.overhead, 4),
        "mirror_ratio_least": round(ratios[0], 2),
        "mirror_ratio_median": round(ratios[len(ratios) // 2], 2),
        "changed_blocks_median": round(changed[len(changed) // 2], 3),
        "changed_blocks_range": [round(changed[0], 3), round(changed[-1], 3)],
        "rows_per_changed_block": [int(n) for n in per_block],
    }


def headline_of(rows: Sequence[dict[str, Any]], captured: Captured) -> dict[str, Any]:
    """Worst of all rows, the fixed points, and whether every captured row came back."""
    fixed = {row["workload"]: row for row in rows}
    return {
        "stored_over_own_bytes": max(row["stored_over_own"] for row in rows),
        "family_ratio_over_bound": min(row["ratio_over_bound"] for row in rows),
        "family_ratio_synthetic_n10": fixed["synthetic"]["ratio"],
        "own_share_synthetic_n10": fixed["synthetic"]["own_share"],
        "mirror_ratio_hurricane_fast": fixed[f"{HURRICANE}, blocks of 200"]["mirror_ratio_least"],
        "bit_exact": captured.wrong == 0,
        "rows_compared": captured.rows,
    }


if __name__ == "__main__":
    raise SystemExit(main())
