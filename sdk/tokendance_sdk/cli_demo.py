"""`tokendance demo`: the whole thing on one CPU machine, against plain vLLM, in a few minutes."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokendance_sdk.cli_replay import PLAIN_ARGUMENTS, Player, play, show
from tokendance_sdk.cli_server import running_server, vllm_command
from tokendance_sdk.demo_model import ensure_smollm2
from tokendance_sdk.errors import TokenDanceError
from tokendance_sdk.protocol import DEFAULT_FIDELITY, Fidelity
from tokendance_sdk.replay import Replay, Settings, served_model, server_codec
from tokendance_sdk.workload import Workload, load_workload
from tokendance_sdk.workload_cut import Cut, cut

WORKLOAD = "ga-ville3-valentine"
ROUNDS = 5
ANSWER_TOKENS = 16
SIZE = Cut(history_tokens=800, block_tokens=200)
"""The standard cut of the benchmarks: prompts of up to 1,400 tokens, which a plain server reads in seconds."""

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
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"The first so many rounds; default: {ROUNDS}, or all if fewer.")
    ] = None,
    fidelity: Annotated[Fidelity, typer.Option(help="How exact answers must be.")] = DEFAULT_FIDELITY,
    model: Annotated[str | None, typer.Option(help="A model of yours; default: the demo model.")] = None,
    dtype: Annotated[str, typer.Option(help="vLLM's --dtype.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the generated texts too.")] = False,
) -> None:
    """Serve a small model with and without TokenDance, play one LangGraph story through both, and compare.

    Each round is one step of the graph. It reads what was recorded in the round before, so both
    servers are given the same prompts. They run one after the other. Needs the engine
    (`make setup`), no GPU and no model hub.
    """
    console = Console(stderr=True, soft_wrap=True)
    # Whatever is missing is said before a minute is spent on anything else.
    vllm_command()
    play_graph = _graph_player()
    whole = load_workload(workload)
    # Memory for KV pages: enough for this story, small enough for a laptop.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if model is None:
        with _busy(console, "making the demo model (once, 15 s)"):
            model = str(ensure_smollm2())
    how = Settings(fidelity=fidelity, answer_tokens=ANSWER_TOKENS, force_length=True)
    size = replace(SIZE, rounds=rounds or min(ROUNDS, len(whole.rounds)))
    played = []
    with tempfile.TemporaryDirectory(prefix="tokendance-demo-") as scratch:
        for name, more in (("TokenDance", _PLUGIN), ("plain vLLM", PLAIN_ARGUMENTS)):
            arguments = (*_SERVER, "--dtype", dtype, *more)
            log = Path(scratch) / f"{name.replace(' ', '-')}.log"
            played.append(_run(console, name, model, arguments, log, how, whole, size, play_graph))
    ours, other = played
    show(Console(), ours, other, as_json=as_json, verbose=verbose)
    if ours.failed or other.failed:
        raise typer.Exit(1)


def _run(
    console: Console,
    name: str,
    model: str,
    arguments: tuple[str, ...],
    log: Path,
    how: Settings,
    whole: Workload,
    size: Cut,
    player: Player,
) -> Replay:
    from openai import OpenAI

    begun = time.monotonic()
    line = f"{name}: vllm serve {model} {' '.join(arguments)}"
    console.print(line, markup=False, highlight=False)
    with ExitStack() as stack:
        with _busy(console, f"starting {name} (half a minute)"):
            url = stack.enter_context(running_server(model, arguments, log))
        ready = time.monotonic()
        probe = stack.enter_context(OpenAI(base_url=url, api_key="none"))
        served, _ = served_model(probe)
        scenario = cut(whole, size, *server_codec(probe, served))
        played = play(scenario, how, url, served, label=name, player=player)
        done = time.monotonic()
    console.print(f"{name}: up after {ready - begun:.0f} s, played in {done - ready:.0f} s, stopped")
    return played


def _busy(console: Console, text: str) -> AbstractContextManager[object]:
    """A spinner on a terminal; elsewhere it would leave an empty line."""
    return console.status(text) if console.is_terminal else nullcontext()


def _graph_player() -> Player:
    try:
        from tokendance_sdk.demo_graph import play_graph
    except ModuleNotFoundError as error:
        raise TokenDanceError(
            f"the demo is a LangGraph graph and needs {error.name!r}, which is not installed; "
            "pip install 'tokendance[langgraph]'"
        ) from error
    return play_graph
