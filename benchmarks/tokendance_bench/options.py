"""Command-line options that all benchmarks share: the workload, its standard cuts, the model."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokendance_sdk.workload import Workload, load_workload
from tokendance_sdk.workload_cut import Cut, cut

from tokendance_bench.inproc import Engine


def parser(name: str, description: str, workload: str, agents: int) -> argparse.ArgumentParser:
    """A parser with the shared options and this benchmark's defaults."""
    it = argparse.ArgumentParser(prog=f"tokendance bench {name}", description=description)
    it.add_argument("--workload", default=workload, help="a .jsonl file, or a name from benchmarks/workloads")
    it.add_argument("--agents", type=int, default=agents, help="the first so many agents")
    it.add_argument("--history-tokens", type=int, default=800, help="longest private history")
    it.add_argument("--block-tokens", type=int, default=0, help="longest shared block; 0: uncut")
    it.add_argument(
        "--model", default=None, help="a Hugging Face folder; default: the demo model, made if missing"
    )
    it.add_argument("--dtype", default="float32", help="model dtype (bfloat16 is slow on CPUs without AMX)")
    it.add_argument("--kv-gib", type=int, default=6, help="vLLM's KV space")
    it.add_argument("--out", type=Path, default=Path("bench-results") / name, help="folder of results.json")
    it.add_argument("--quick", action="store_true", help="headline keys only")
    return it


def model_of(args: argparse.Namespace) -> str:
    """The model folder."""
    if args.model:
        return str(args.model)
    from tokendance_sdk.demo_model import ensure_smollm2

    return str(ensure_smollm2())


def workload_of(args: argparse.Namespace, engine: Engine, rounds: int) -> Workload:
    """The workload, cut by the engine's own tokenizer."""
    size = Cut(
        agents=args.agents,
        rounds=rounds,
        history_tokens=args.history_tokens or None,
        block_tokens=args.block_tokens or None,
    )
    return cut(load_workload(args.workload), size, engine.encode, engine.tokenizer.decode)
