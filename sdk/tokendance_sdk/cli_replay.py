"""`tokendance replay`: a recorded workload through one server, or through two to compare them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal
from warnings import catch_warnings, simplefilter

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokendance_sdk.cli_server import running_server
from tokendance_sdk.cli_tables import comparison_table, outputs_lines, rounds_table
from tokendance_sdk.layout import Layout
from tokendance_sdk.protocol import DEFAULT_FIDELITY, Fidelity
from tokendance_sdk.replay import Replay, Settings, replay, served_model, server_codec
from tokendance_sdk.workload import Context, Workload, known_workloads, load_workload
from tokendance_sdk.workload_cut import Cut, cut

LayoutName = Literal["canonical", "self_last", "rotated", "shared_first"]
Player = Callable[..., Coroutine[Any, Any, Replay]]
"""`replay`, or what takes the same arguments."""
PLAIN_ARGUMENTS = ("--enable-prompt-tokens-details",)
"""Without it a plain vLLM does not say what its prefix cache held."""


def _workloads(incomplete: str) -> list[str]:
    return [name for name in known_workloads() if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "replay",
        epilog="[bold]Example:[/bold]  tokendance replay ga-ville3-valentine --base-url http://localhost:8000/v1",
    )(replay_command)


def replay_command(
    workload: Annotated[
        str,
        typer.Argument(help="A .jsonl file, or a name from benchmarks/workloads.", autocompletion=_workloads),
    ],
    base_url: Annotated[str, typer.Option(help="The server's /v1 address.")] = "http://localhost:8000/v1",
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="URL|start", help="Play it there too; `start` starts a plain vLLM with the same model."
        ),
    ] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="The servers' key.")] = "none",
    model: Annotated[str | None, typer.Option(help="As the server calls it; default: its first.")] = None,
    agents: Annotated[int | None, typer.Option(min=1, help="The first so many agents.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="The first so many rounds.")] = None,
    history_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cut private histories to so many.")
    ] = None,
    block_tokens: Annotated[int | None, typer.Option(min=1, help="Cut outputs to so many.")] = None,
    fidelity: Annotated[Fidelity, typer.Option(help="How exact answers must be.")] = DEFAULT_FIDELITY,
    context: Annotated[
        Context, typer.Option(help="Share the last round's outputs, or all so far.")
    ] = "window",
    layout: Annotated[LayoutName, typer.Option(help="The order each agent sees blocks in.")] = "canonical",
    answer_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 32,
    force_length: Annotated[
        bool | None,
        typer.Option(help="Generate exactly so many (vLLM only); default: when comparing."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the generated texts too.")] = False,
) -> None:
    """Play a recorded multi-agent WORKLOAD through a server and show what each round cost.

    What the next round shares are the recorded outputs: so all servers get the same prompts.
    Ends with status 1 when a member had no answer.
    """
    from openai import OpenAI

    console = Console()
    whole = load_workload(workload)
    with OpenAI(base_url=base_url, api_key=api_key) as probe:
        name, root = (model, model) if model else served_model(probe)
        encode, decode = server_codec(probe, name)
        size = Cut(agents, rounds, history_tokens, block_tokens)
        scenario = cut(whole, size, encode, decode)
    forced = compare is not None if force_length is None else force_length
    how = Settings(fidelity, context, getattr(Layout, layout)(), answer_tokens, forced)
    ours = play(scenario, how, base_url, name, api_key=api_key, label=base_url)
    other = None
    if compare is not None:
        with _other_server(compare, root) as url:
            with OpenAI(base_url=url, api_key=api_key) as probe:
                its_name = model if model and compare != "start" else served_model(probe)[0]
            other = play(scenario, how, url, its_name, api_key=api_key, label=url)
    show(console, ours, other, as_json=as_json, verbose=verbose)
    if ours.failed or (other is not None and other.failed):
        raise typer.Exit(1)


def play(
    scenario: Workload,
    how: Settings,
    base_url: str,
    model: str,
    *,
    api_key: str = "none",
    label: str = "",
    player: Player = replay,
) -> Replay:
    """Replay with a progress bar on standard error."""
    from openai import AsyncOpenAI

    from tokendance_sdk.client import PlainServerWarning

    async def run() -> Replay:
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            return await player(
                client, scenario, how, model=model, on_round=lambda row: progress.advance(task)
            )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    bar = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    with bar as progress, catch_warnings():
        simplefilter("ignore", PlainServerWarning)  # the table's title says it
        task = progress.add_task(f"{scenario.name} {label}", total=len(scenario.rounds))
        return asyncio.run(run())


def show(console: Console, ours: Replay, other: Replay | None, *, as_json: bool, verbose: bool) -> None:
    """Print one replay, or two and how they compare."""
    if as_json:
        found: dict[str, Any] = {
            "replay": asdict(ours),
            "compare": asdict(other) if other is not None else None,
        }
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for played in (ours, other):
        if played is None:
            continue
        console.print(rounds_table(played, "plain server" if played.plain else "TokenDance"))
        if verbose:
            for line in outputs_lines(played.rows):
                console.print(line, markup=False, highlight=False)
    if other is not None:
        console.print(comparison_table(ours, other))


@contextmanager
def _other_server(compare: str, model_root: str) -> Iterator[str]:
    if compare != "start":
        yield compare
        return
    with tempfile.TemporaryDirectory(prefix="tokendance-") as scratch:
        log = Path(scratch) / "vllm.log"
        with running_server(model_root, PLAIN_ARGUMENTS, log) as url:
            yield url
