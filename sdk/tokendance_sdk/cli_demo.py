"""`tokendance demo`: the whole thing on one CPU machine, against plain vLLM, in a few minutes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokendance_sdk.cli_replay import PLAIN_ARGUMENTS, play, show
from tokendance_sdk.cli_server import running_server, vllm_command
from tokendance_sdk.demo_model import ensure_smollm2
from tokendance_sdk.protocol import DEFAULT_FIDELITY, Fidelity
from tokendance_sdk.replay import Replay, Settings, served_model, server_codec
from tokendance_sdk.workload import Workload, load_workload
from tokendance_sdk.workload_cut import Cut, cut

WORKLOAD = "ga-ville3-valentine"
SIZE = Cut(history_tokens=800, block_tokens=200)
"""The standard cut of the benchmarks."""

_SERVER = ("--enforce-eager", "--block-size", "32", "--max-model-len", "8192", "--served-model-name", "demo")
_PLUGIN = ("--plugin", "tokendance_engine")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "demo", epilog="[bold]Example:[/bold]  tokendance demo --workload ga-village10-newcomers --rounds 4"
    )(demo)


def demo(
    workload: Annotated[
        str, typer.Option(help="A .jsonl file, or a name from benchmarks/workloads.")
    ] = WORKLOAD,
    rounds: Annotated[int, typer.Option(min=1, help="The first so many rounds.")] = 5,
    fidelity: Annotated[Fidelity, typer.Option(help="How exact answers must be.")] = DEFAULT_FIDELITY,
    model: Annotated[str | None, typer.Option(help="A model of yours; default: the demo model.")] = None,
    dtype: Annotated[str, typer.Option(help="vLLM's --dtype.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the generated texts too.")] = False,
) -> None:
    """Serve a small model with and without TokenDance, play one multi-agent story through both, and compare.

    The two servers run one after the other. Needs the engine (`make setup`), no GPU and no model hub.
    """
    console = Console(stderr=as_json)
    vllm_command()  # before a minute is spent on anything else
    # Memory for KV pages: enough for this story, small enough for a laptop.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if model is None:
        with console.status("making the demo model (once)"):
            model = str(ensure_smollm2())
    how = Settings(fidelity=fidelity, force_length=True)
    arguments = (*_SERVER, "--dtype", dtype)
    with tempfile.TemporaryDirectory(prefix="tokendance-demo-") as scratch:
        logs = Path(scratch)
        ours, scenario = _run(
            console, "TokenDance", model, (*arguments, *_PLUGIN), logs, how, workload, rounds
        )
        other, _ = _run(
            console,
            "plain vLLM",
            model,
            (*arguments, *PLAIN_ARGUMENTS),
            logs,
            how,
            workload,
            rounds,
            scenario,
        )
    show(Console(), ours, other, as_json=as_json, verbose=verbose)
    if ours.failed or other.failed:
        raise typer.Exit(1)


def _run(
    console: Console,
    name: str,
    model: str,
    arguments: tuple[str, ...],
    logs: Path,
    how: Settings,
    workload: str,
    rounds: int | None,
    scenario: Workload | None = None,
) -> tuple[Replay, Workload]:
    from openai import OpenAI

    status = console.status(f"starting {name}")
    status.start()
    try:
        with running_server(model, arguments, logs / f"{name.replace(' ', '-')}.log") as url:
            status.stop()
            with OpenAI(base_url=url, api_key="none") as probe:
                served, _ = served_model(probe)
                if scenario is None:
                    size = Cut(
                        rounds=rounds, history_tokens=SIZE.history_tokens, block_tokens=SIZE.block_tokens
                    )
                    scenario = cut(load_workload(workload), size, *server_codec(probe, served))
            return play(scenario, how, url, served, label=name), scenario
    finally:
        status.stop()
