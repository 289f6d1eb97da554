"""Every Triton kernel compiles for every target without a GPU, spills nothing, and uses what the docs say it uses."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plane_cases import PlaneCase

pytest.importorskip("triton")

import triton
from tokendance_engine.kernels import aot, launch
from tokendance_engine.kernels.planes import Planes
from tokendance_engine.kernels.rope import RopeTable
from tokendance_engine.kernels.triton_runtime import compiled
from tokendance_engine.kernels.tuning import tuning
from triton.compiler import ASTSource

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
RECORD = json.loads((DOCS / "kernels.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def compiled_now() -> dict[str, Any]:
    return aot.record()


def test_no_kernel_spills_on_any_target(compiled_now: dict[str, Any]) -> None:
    kernels = compiled_now["kernels"]
    assert {k["kernel"] for k in kernels} == {"restore", "diff", "rope", "deviation"}
    assert {k["target"] for k in kernels} == {"sm_80", "sm_90", "sm_100", "gfx942"}
    assert [k for k in kernels if k["spills"] or k["stack_bytes"]] == []
    assert all(k["registers"] > 8 for k in kernels), "a resource report that says nothing"


def test_the_record_in_the_docs_is_what_compiles_now(compiled_now: dict[str, Any]) -> None:
    """`python -m tokendance_engine.kernels.aot docs/benchmarks/kernels.json` writes it anew."""
    assert [(k["kernel"], k["shape"], k["target"]) for k in RECORD["kernels"]] == [
        (name, str(shape), target) for name, shape, target in aot.cases()
    ]
    if RECORD["triton"] == triton.__version__:
        assert compiled_now == RECORD


def test_the_page_shows_the_record() -> None:
    assert aot.table(RECORD["kernels"]) in (DOCS / "kernels.md").read_text("utf-8")


def test_a_kernel_that_spills_is_noticed() -> None:
    """The same kernel with too few registers: the gate must see what it does to it."""
    source = aot.source_of("diff", aot.SHAPES[0])
    binary = triton.compile(
        source,
        target=aot.TARGETS["sm_90"],
        options={"num_warps": 1, "maxnreg": 32, "enable_fp_fusion": False},
    )
    assert aot.nvidia_usage(binary.asm["cubin"], 1, 0).spills > 0


Call = tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Callable[..., None], Call]]:
    """What launchers would launch, recorded instead."""
    made: list[tuple[Callable[..., None], Call]] = []

    class Recorder:
        def __init__(self, kernel: Callable[..., None]) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **kwargs: made.append((self.kernel, (grid, args, kwargs)))

    monkeypatch.setattr(launch, "runner", lambda kernel, device, interpret: Recorder(kernel))
    return made


def source_of(kernel: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ASTSource:
    """The kernel with types, constants and alignments as Triton would specialise it for these arguments."""
    pointer = {
        torch.float32: "*fp32",
        torch.float16: "*fp16",
        torch.bfloat16: "*bf16",
        torch.int32: "*i32",
        torch.int64: "*i64",
    }
    # Raises TypeError for an argument that is missing, misspelt, or one too many: the interpreter ignores those.
    bound = inspect.signature(kernel).bind(*args, **kwargs).arguments
    signature, constants, attrs = {}, {}, {}
    for i, (name, value) in enumerate(bound.items()):
        number = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if isinstance(number, int) and number % 16 == 0:
            attrs[(i,)] = [["tt.divisibility", 16]]
        annotated = inspect.signature(kernel).parameters[name].annotation
        if annotated is not inspect.Parameter.empty or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = pointer[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    attrs = {at: attr for at, attr in attrs.items() if list(bound)[at[0]] not in constants}
    return ASTSource(fn=compiled(kernel), signature=signature, constexprs=constants, attrs=attrs)


def launch_everything(dtype: torch.dtype) -> None:
    case = PlaneCase.draw(dtype=dtype, dim=80, rot=32, neox=False, n=40)
    launch.restore(case.planes, case.planes, case.rows)
    launch.restore(case.planes, case.planes, case.rows, case.overlay())
    launch.restore(case.planes, case.planes, case.rows, case.overlay(rotate=True))
    for absent in ("key", "value"):
        alone = case.without(absent)
        launch.restore(alone.planes, alone.planes, alone.rows)
        launch.diff(alone.planes, alone.planes, alone.rows)
    launch.diff(case.planes, case.planes, case.rows, tolerance=0.5)
    launch.pack(case.planes, case.rows.source_page, case.rows.source_row)
    launch.deviation(case.planes, case.planes, case.rows)
    keys = torch.zeros(40, 2, 80, dtype=dtype)
    launch.rotate(keys, RopeTable(torch.ones(9, 32)), case.rows.source_page, case.rows.source_page)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_launchers_pass_compiles(
    dtype: torch.dtype, calls: list[tuple[Callable[..., None], Call]]
) -> None:
    launch_everything(dtype)
    assert len(calls) == 11
    for kernel, (grid, args, kwargs) in calls:
        assert 1 <= len(grid) <= 2
        assert all(g > 0 for g in grid)
        options = {name: kwargs.pop(name) for name in tuning(80).options(nvidia=True)}
        binary = triton.compile(source_of(kernel, args, kwargs), target=aot.TARGETS["sm_90"], options=options)
        assert aot.nvidia_usage(binary.asm["cubin"], 1, 0).spills == 0, kernel.__name__


def test_an_argument_too_many_is_noticed(calls: list[tuple[Callable[..., None], Call]]) -> None:
    case = PlaneCase.draw()
    launch.deviation(Planes(case.planes.key, None), Planes(case.planes.key, None), case.rows)
    kernel, (_, args, kwargs) = calls[0]
    with pytest.raises(TypeError):
        source_of(kernel, args, kwargs)  # launch options are no arguments of the kernel
