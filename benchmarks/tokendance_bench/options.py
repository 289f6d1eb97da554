"""Command-line options that all benchmarks share: the workload, its standard cuts, the model, where results go."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokendance_sdk.workload import Workload, load_workload
from tokendance_sdk.workload_cut import Cut, cut

from tokendance_bench.environment import environment
from tokendance_bench.tiny import tiny_model


class Tokenizing(Protocol):
    """What cutting needs: an engine, or only its tokenizer."""

    tokenizer: Any

    def encode(self, text: str) -> list[int]: ...


def plain_parser(name: str, description: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with `--out` and `--quick`, for benchmarks that need no model."""
    lines = "\n".join(f"  tokendance bench {name} {example}".rstrip() for example in ("--quick", *examples))
    it = argparse.ArgumentParser(
        prog=f"tokendance bench {name}",
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    it.add_argument("--out", type=Path, default=Path("bench-results") / name, help="folder of results.json")
    it.add_argument("--quick", action="store_true", help="headline keys only, within about ten minutes")
    return it


def parser(
    name: str, description: str, workload: str, agents: int, examples: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A parser with the shared options and this benchmark's defaults."""
    it = plain_parser(name, description, examples)
    it.add_argument("--workload", default=workload, help="a .jsonl file, or a name from benchmarks/workloads")
    it.add_argument("--agents", type=positive, default=agents, help="the first so many agents")
    it.add_argument("--history-tokens", type=int, default=800, help="longest private history; 0: uncut")
    it.add_argument("--block-tokens", type=int, default=0, help="longest shared block; 0: uncut")
    it.add_argument(
        "--model",
        help="a Hugging Face folder, or `tiny`: random weights, for what follows tokens; default: the demo model",
    )
    it.add_argument("--dtype", default="float32", help="model dtype (bfloat16 is slow on CPUs without AMX)")
    it.add_argument("--kv-gib", type=positive, default=6, help="vLLM's KV space")
    return it


def positive(text: str) -> int:
    """An argument of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; allowed: at least 1")
    return number


def model_of(args: argparse.Namespace) -> str:
    """The model folder."""
    from tokendance_sdk.demo_model import cache_folder, ensure_smollm2

    if args.model == "tiny":
        return tiny_model(cache_folder() / "models" / "tiny-random-llama")
    if args.model:
        return str(args.model)
    return str(ensure_smollm2())


def workload_of(args: argparse.Namespace, engine: Tokenizing, rounds: int) -> Workload:
    """The workload, cut by the engine's own tokenizer."""
    size = Cut(
        agents=args.agents,
        rounds=rounds,
        history_tokens=args.history_tokens or None,
        block_tokens=args.block_tokens or None,
    )
    return cut(load_workload(args.workload), size, engine.encode, engine.tokenizer.decode)


def about(args: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """The environment of a benchmark with the shared options, and how it was called."""
    settings = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(args).items()
        if key not in ("allowed_systems", "default_systems", "quick_systems", "child", "out", "url")
        and not isinstance(value, Callable)  # type: ignore[arg-type]
    }
    return environment(model=Path(model_of(args)).name, dtype=args.dtype, settings=settings, **more)


def of_workload(workload: Workload) -> dict[str, str]:
    """Which workload, and how it was cut: stands in every headline."""
    return {"workload": workload.name, "cut": workload.cut.describe() if workload.cut else "uncut"}
