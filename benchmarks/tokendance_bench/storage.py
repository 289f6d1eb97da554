"""Bytes that stored members take: every workload, one round and eight, the paper's layout beside ours.

Rounds run in an engine inside this process (context of all rounds, short blocks), so what is stored is what the engine
captured: plans, corrections, decoded tokens and all. Every capture is re-made from the store and compared, bit for
bit, with the pages it was read from. Bytes do not depend on weights: the model is the tiny random one unless `--model`
is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tokendance_sdk.workload import Context, known_workloads, load_workload
from tokendance_sdk.workload_cut import Cut, cut

from tokendance_bench.captured import Captured
from tokendance_bench.inproc import Engine, Prompt
from tokendance_bench.options import about, model_of, parser, positive
from tokendance_bench.run import Run

QUICK = ("debate-math4", "ga-ville3-valentine", "dev-humaneval4")
HURRICANE = "as-hurricane-profiles32"
HURRICANE_CUT = f"{HURRICANE}, blocks of 200"
SYNTHETIC = "synthetic"
LONGEST = 16384
ROOM = 600
"""Fillers and skipped positions that a prompt may need beside its answer."""
PAPER_AGENTS = 10
"""The paper's layout compares every pair of members: only up to so many."""

Rounds = list[list[Prompt]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = parser("storage", __doc__ or "", "all", 64)
    options.set_defaults(model="tiny", block_tokens=64, kv_gib=1)
    options.add_argument("--rounds", type=positive, default=8, help="of each workload, as far as it goes")
    options.add_argument("--fidelities", nargs="+", default=["fast", "balanced"])
    options.add_argument("--answer-tokens", type=positive, default=8)
    args = options.parse_args(argv)
    names = [args.workload] if args.workload != "all" else list(QUICK) if args.quick else known_workloads()
    fidelities = args.fidelities[:1] if args.quick else args.fidelities
    engine = Engine(
        model_of(args),
        kv_gib=args.kv_gib,
        dtype=args.dtype,
        max_num_seqs=64,
        max_model_len=LONGEST if args.model == "tiny" else LONGEST // 2,
        tokendance={"cpu_bytes": 4 << 30},
    )
    captured = Captured.watch(engine)
    with Run("storage", args.out, headline, about(args), 2 + 2 * len(names) * len(fidelities)) as run:
        parts: list[tuple[str, str, Rounds | None]] = [(SYNTHETIC, "fast", [synthetic()])]
        parts += [(HURRICANE_CUT, "fast", prompts_of(engine, args, HURRICANE, 1, 200, "window"))]
        parts += [(name, fidelity, None) for name in names for fidelity in fidelities]
        for name, fidelity, made in parts:
            run.doing(f"{name}, {fidelity}")
            rounds = made or prompts_of(engine, args, name, args.rounds, args.block_tokens, "transcript")
            for row in play(engine, captured, rounds, fidelity, args.answer_tokens):
                run.add({"workload": name, "fidelity": fidelity, **row})
    return 0 if captured.wrong == 0 else 1


def synthetic(agents: int = 10) -> list[Prompt]:
    """One round of random tokens: ten members of whose tokens about 8 % are their own."""
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(t) for t in rng.integers(1000, 40_000, n)]

    blocks, end = [text(372) for _ in range(10)], text(16)
    prompts = []
    for i in range(agents):
        tokens, boundaries = text(296 + i), []
        for block in blocks:
            boundaries.append(len(tokens))
            tokens += block
        prompts.append(Prompt(f"a{i}", tokens + end, [*boundaries, len(tokens)]))
    return prompts


def prompts_of(engine: Engine, args: Any, name: str, rounds: int, block: int, context: Context) -> Rounds:
    """Prompts of rounds 1 to `rounds`, as far as there are recorded ones and they fit."""
    whole = load_workload(name)
    rounds = min(rounds, len(whole.rounds) - 1)
    size = Cut(
        agents=min(args.agents, len(whole.agents)),
        rounds=rounds + 1,
        history_tokens=args.history_tokens or None,
        block_tokens=block or None,
    )
    made = cut(whole, size, engine.encode, engine.tokenizer.decode)
    longest = engine.llm.model_config.max_model_len - args.answer_tokens - ROOM
    prompts: Rounds = []
    for t in range(1, rounds + 1):
        each = [engine.prompt(made.prompt(agent, t, context=context)) for agent in made.agents]
        if max(len(p.tokens) for p in each) > longest:
            break
        prompts.append(each)
    return prompts


def play(
    engine: Engine, captured: Captured, rounds: Rounds, fidelity: str, answer_tokens: int
) -> Iterator[dict[str, Any]]:
    """Play rounds of one session; a row after the first and after the last of them.

    `rows_compared` and `wrong_rows` count every capture since the row before.
    """
    engine.forget()
    compared, wrong = captured.rows, captured.wrong
    for number, prompts in enumerate(rounds, 1):
        told = number in (1, len(rounds))
        captured.keep = told and len(prompts) <= PAPER_AGENTS
        captured.kept.clear()
        how = {"round_id": f"s:{number}", "fidelity": fidelity}
        reports = engine.round(prompts, how, max_tokens=answer_tokens).reports
        engine.drain()
        if not told:
            continue
        row = {"round": number, **sizes(captured.family())}
        row["reused_tokens"] = sum(r["reused_tokens"] for r in reports if r is not None)
        row |= {"rows_compared": captured.rows - compared, "wrong_rows": captured.wrong - wrong}
        compared, wrong = captured.rows, captured.wrong
        if captured.keep:
            family, mirror = captured.paper()
            row |= {"paper_layout_ratio": round(family, 3), "paper_layout_mirror_ratio": round(mirror, 2)}
        yield row


def sizes(family: Any) -> dict[str, Any]:
    """What a family takes, against what it must.

    `blocks` are storage blocks of 16 tokens; `rows_per_changed_block` counts those with 1, 2, ... 16 stored rows.
    """
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
        "bound": round(family.bound, 3),
        "ratio_over_bound": round(family.ratio / family.bound, 4),
        "stored_over_own": round(family.overhead, 4),
        "mirror_ratio_least": round(ratios[0], 2),
        "mirror_ratio_median": round(ratios[len(ratios) // 2], 2),
        "changed_blocks_median": round(changed[len(changed) // 2], 3),
        "changed_blocks_range": [round(changed[0], 3), round(changed[-1], 3)],
        "rows_per_changed_block": [int(n) for n in per_block],
    }


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Worst of all rows, the fixed points, and whether every captured row came back."""
    if not rows:
        return {}
    found: dict[str, Any] = {
        "stored_over_own_bytes": max(row["stored_over_own"] for row in rows),
        "family_ratio_over_bound": min(row["ratio_over_bound"] for row in rows),
    }
    for row in rows:
        if row["workload"] == SYNTHETIC:
            found["family_ratio_synthetic_n10"] = row["ratio"]
            found["own_share_synthetic_n10"] = row["own_share"]
        if row["workload"] == HURRICANE_CUT:
            found["mirror_ratio_hurricane_fast"] = row["mirror_ratio_least"]
    found["bit_exact"] = all(row["wrong_rows"] == 0 for row in rows)
    return found | {"rows_compared": sum(row["rows_compared"] for row in rows)}


if __name__ == "__main__":
    raise SystemExit(main())
