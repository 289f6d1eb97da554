"""Ahead-of-time compilation of every Triton kernel, on a machine without a GPU: does it compile, and what does it use?

`python -m tokendance_engine.kernels.aot FILE.json` writes the record that `docs/benchmarks` shows and prints its table.
A kernel that spills registers to memory is a defect: `Usage.spills` must be 0.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from tokendance_engine.kernels.triton_deviation import deviation_kernel
from tokendance_engine.kernels.triton_diff import diff_kernel
from tokendance_engine.kernels.triton_restore import restore_kernel
from tokendance_engine.kernels.triton_rope import rope_kernel
from tokendance_engine.kernels.triton_runtime import Kernel, compiled
from tokendance_engine.kernels.tuning import pairing, power_of_two, shape_constants, tuning
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

KERNELS: dict[str, Kernel] = {
    "restore": restore_kernel,
    "diff": diff_kernel,
    "rope": rope_kernel,
    "deviation": deviation_kernel,
}

_INDEX = ("source_page", "source_row", "target_page", "target_row", "old", "new")
_PLANES = ("sk", "sv", "dk", "dv", "pk", "pv", "keys")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is specialised for."""

    dtype: str
    heads: int
    dim: int
    rot: int
    neox: bool = True
    overlay: bool = False

    def __str__(self) -> str:
        parts = [self.dtype, f"{self.heads} heads of {self.dim}"]
        parts += [f"{self.rot} rotated"] if self.rot != self.dim else []
        parts += [] if self.neox else ["interleaved"]
        return ", ".join(parts + (["overlay"] if self.overlay else []))


SHAPES = (
    Shape("bf16", 8, 128, 128),
    Shape("bf16", 8, 128, 128, overlay=True),
    Shape("fp16", 3, 64, 64, neox=False),
    Shape("bf16", 32, 80, 32),
    Shape("fp32", 4, 256, 256),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one compiled kernel uses: registers of a thread, and bytes (shared memory of a program)."""

    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    warps: int


def cases() -> Iterator[tuple[str, Shape, str]]:
    """Every kernel name, shape and target that is compiled."""
    for name in KERNELS:
        for shape in SHAPES:
            if name == "restore" or not shape.overlay:
                yield from ((name, shape, target) for target in TARGETS)


def usage(name: str, shape: Shape, target: str) -> Usage:
    """Compile one kernel and read what it uses.

    Raises:
        triton.CompilationError: it does not compile.
        RuntimeError: the resource report of the target's tools was not understood.
    """
    binary = triton.compile(
        source_of(name, shape),
        target=TARGETS[target],
        options=tuning(shape.dim, name).options(nvidia=TARGETS[target].backend == "cuda"),
    )
    warps = int(binary.metadata.num_warps)
    shared = int(binary.metadata.shared)
    if TARGETS[target].backend == "hip":
        return amd_usage(binary.asm["amdgcn"], warps)
    return nvidia_usage(binary.asm["cubin"], warps, shared)


def source_of(name: str, shape: Shape) -> ASTSource:
    """A kernel with the types, constants and alignments that a launch on such pages would give it."""
    kernel = KERNELS[name]
    function = compiled(kernel)
    constants = _constants(shape)
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    pointers = dict.fromkeys(_PLANES, f"*{shape.dtype}")
    pointers |= dict.fromkeys(_INDEX, "*i64") | dict.fromkeys(("cos", "sin", "table"), "*fp32")
    pointers |= {"overlay": "*i32", "masks": "*i32", "out": "*fp32"}
    if kernel is rope_kernel:
        pointers["out"] = f"*{shape.dtype}"
    signature = {}
    for key in function.arg_names:
        if key in constants:
            signature[key] = "constexpr"
        elif key in pointers:
            signature[key] = pointers[key]
        else:
            signature[key] = "fp32" if key in ("tolerance", "inverse_square") else "i32"
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, key in enumerate(function.arg_names)
        if key in pointers or (key.endswith(("_page", "_head", "_row")) and signature[key] == "i32")
    }
    return ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)


def _constants(shape: Shape) -> dict[str, Any]:
    half = shape.rot // 2
    strides = ("sk_dim", "sv_dim", "dk_dim", "dv_dim", "k_dim", "o_dim")
    return {
        **dict.fromkeys(strides, 1),  # what launching with a stride of 1 specialises to
        "HEADS": shape.heads,
        "VDIM": shape.dim,
        "VDIM_P2": power_of_two(shape.dim),
        "KEYS": True,
        "VALUES": True,
        "OVERLAY": shape.overlay,
        "ROTATE_OVERLAY": False,
        "NEAR": True,
        "BITS": 32 if shape.dtype == "fp32" else 16,
        "T": tuning(shape.dim).rows,
        **pairing(half, shape.neox),
        **shape_constants(shape.dim, half),
    }


def nvidia_usage(cubin: bytes, warps: int, shared: int) -> Usage:
    """What a compiled NVIDIA kernel uses, from Triton's own copy of cuobjdump."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    if set(found) != {"REG", "STACK", "LOCAL"}:
        raise RuntimeError(f"cuobjdump reported {report!r}; expected REG, STACK and LOCAL")
    # Whatever ptxas spills lies on the stack or in local memory; these kernels have no arrays of their own.
    return Usage(found["REG"], found["LOCAL"] + found["STACK"], found["STACK"], shared, warps)


def amd_usage(assembly: str, warps: int) -> Usage:
    """What a compiled AMD kernel uses, from the metadata of its assembly."""
    found = {key: int(value) for key, value in re.findall(r"^\s*\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    try:
        spills = found["vgpr_spill_count"] + found["sgpr_spill_count"]
        stack = found["private_segment_fixed_size"]
        return Usage(found["vgpr_count"], spills, stack, found["group_segment_fixed_size"], warps)
    except KeyError as error:
        raise RuntimeError(f"no {error} in the kernel's metadata") from None


def record() -> dict[str, Any]:
    """Compile everything; JSON types only."""
    used = [
        {"kernel": name, "shape": str(shape), "target": target, **asdict(usage(name, shape, target))}
        for name, shape, target in cases()
    ]
    return {"triton": triton.__version__, "rows_per_program": tuning(1).rows, "kernels": used}


def table(kernels: Iterable[dict[str, Any]]) -> str:
    """The record's kernels as Markdown: registers of a thread, and shared memory where there is any."""
    found = {(k["kernel"], k["shape"], k["target"]): k for k in kernels}
    lines = [f"| kernel | compiled for | warps | {' | '.join(TARGETS)} |", "|---" * (3 + len(TARGETS)) + "|"]
    for name, shape in dict.fromkeys((name, shape) for name, shape, _ in found):
        row = [found[name, shape, target] for target in TARGETS]
        cells = [str(k["registers"]) + f" + {k['shared_bytes']} B" * bool(k["shared_bytes"]) for k in row]
        lines.append(f"| {name} | {shape} | {row[0]['warps']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    made = record()
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(table(made["kernels"]))
    if any(k["spills"] for k in made["kernels"]):
        sys.exit("error: a kernel spills registers")
