"""Servers under test: started on free ports of this machine, gone when the block is left."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tokendance_sdk.cli_server import free_port, running_server, stop_group

from tokendance_bench.children import ChildError, tail
from tokendance_bench.systems import System
from tokendance_bench.tokenizing import context_of

SERVED_NAME = "bench"
PAGE = 32
_LMCACHE_START_SECONDS = 120.0


@contextmanager
def serving(
    system: System, model: str, args: argparse.Namespace, log: Path, more: Sequence[str] = ()
) -> Iterator[str]:
    """The `/v1` URL of a server of `system`; one of ours is started with the same settings for every system.

    Args:
        args: `dtype` and `kv_gib` of the shared options.
        log: file of the server's output.
        more: further arguments of `vllm serve`.

    Raises:
        tokendance_sdk.cli_server.ServerStartError: vLLM did not come up.
        ChildError: LMCache's server did not come up.
    """
    if system.server == "url":
        yield system.url
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores())
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(args.kv_gib)
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        own = ["--plugin", "tokendance_engine"] if system.server == "tokendance" else []
        if system.server == "lmcache":
            own = stack.enter_context(lmcache_server(log.with_suffix(".lmcache.log")))
        arguments = [*common_arguments(model, args), *own, *more]
        yield stack.enter_context(running_server(model, arguments, log))


def common_arguments(model: str, args: argparse.Namespace) -> list[str]:
    """Arguments of `vllm serve` that all systems share."""
    return [
        *("--served-model-name", SERVED_NAME),
        *("--dtype", args.dtype),
        "--enforce-eager",
        *("--block-size", str(PAGE)),
        *("--max-model-len", str(context_of(model))),
        *("--max-num-seqs", "64"),
        *("--gpu-memory-utilization", "0.3"),
        "--enable-prompt-tokens-details",
    ]


def cores() -> str:
    """The cores this process may use, as vLLM wants them: every server is bound to the same."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


@contextmanager
def lmcache_server(log: Path, gib: int = 4) -> Iterator[list[str]]:
    """LMCache's own server, caching in RAM; the arguments that make vLLM use it.

    Raises:
        ChildError: it is not installed, or did not come up.
    """
    beside = Path(sys.executable).with_name("lmcache")
    command = str(beside) if beside.exists() else shutil.which("lmcache")
    if command is None:
        raise ChildError("LMCache is not installed here; pip install 'tokendance[lmcache]'")
    port, http, metrics = free_port(), free_port(), free_port()
    arguments = [
        *(command, "server", "--host", "localhost", "--port", str(port)),
        *("--http-port", str(http), "--prometheus-port", str(metrics)),
        *("--l1-size-gb", str(gib), "--no-l1-use-lazy", "--eviction-policy", "LRU", "--chunk-size", "256"),
        # The fastest of its ways to hand pages over on a CPU host.
        *("--supported-transfer-mode", "engine_driven", "--shm-name", f"tokendance-bench-{port}"),
    ]
    environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            arguments, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _wait(process, http, log)
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
        }
        yield ["--kv-transfer-config", json.dumps(transfer)]
    finally:
        stop_group(process)


def _wait(process: subprocess.Popen[bytes], http: int, log: Path) -> None:
    end = time.monotonic() + _LMCACHE_START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            with suppress(urllib.error.HTTPError):  # any answer means that it is up
                urllib.request.urlopen(f"http://127.0.0.1:{http}/", timeout=2).close()
            return
        time.sleep(0.2)
    raise ChildError(f"LMCache's server did not come up (status {process.poll()}); see {log}\n{tail(log)}")
