"""The layers of the design hold: which of our packages imports which, and who may import vLLM."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "tokendance_sdk": ROOT / "sdk" / "tokendance_sdk",
    "tokendance_engine": ROOT / "engine" / "tokendance_engine",
    "tokendance_bench": ROOT / "benchmarks" / "tokendance_bench",
}

E = "tokendance_engine"
WIRE = "tokendance_sdk.protocol"
BELOW: dict[str, tuple[str, ...]] = {
    f"{E}.kernels": (),
    f"{E}.segments": (),
    f"{E}.storage": (f"{E}.kernels", f"{E}.segments"),
    f"{E}.reuse": (f"{E}.kernels", f"{E}.segments", f"{E}.storage", f"{E}.rounds", WIRE),
}
"""Layer -> what of ours it may import, apart from itself and the engine's errors."""

MAY_IMPORT_VLLM = (f"{E}.adapters.vllm", f"{E}.frontend", f"{E}.plugin")


def modules(package: str) -> Iterator[tuple[str, Path]]:
    base = SOURCES[package]
    for folder in (base, *(link for link in base.iterdir() if link.is_symlink())):
        for file in sorted(folder.rglob("*.py")):
            dotted = file.relative_to(base.parent).with_suffix("").as_posix().replace("/", ".")
            yield dotted.removesuffix(".__init__"), file


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Absolute names that the tree imports, `from a import b` as `a.b`, with line numbers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                home = module.split(".")[
                    : None if is_package and node.level == 1 else -node.level + is_package
                ]
                source = ".".join([*home, *([source] if source else [])])
            yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def broken_rule(module: str, name: str) -> str | None:
    """Why `module` may not import `name`, or None when it may."""
    if under(module, "tokendance_sdk") and under(name, E):
        return "the SDK never imports the engine"
    if (
        under(module, "tokendance_sdk", E)
        and under(name, "tokendance_bench")
        and module != "tokendance_sdk.cli"
    ):
        return "nothing but the command line imports the benchmarks"
    if under(name, "vllm") and not under(module, *MAY_IMPORT_VLLM, "tokendance_bench"):
        return f"only {', '.join(MAY_IMPORT_VLLM)} import vllm"
    for layer, allowed in BELOW.items():
        ours = under(name, *SOURCES)
        if under(module, layer) and ours and not under(name, layer, f"{E}.errors", *allowed):
            return f"{layer} may import {', '.join(allowed) or 'nothing of ours'}"
    return None


def found_imports(package: str) -> list[tuple[str, str, str]]:
    return [
        (module, name, f"{file.relative_to(ROOT)}:{line}")
        for module, file in modules(package)
        for name, line in imports(ast.parse(file.read_text("utf-8")), module, file.name == "__init__.py")
    ]


@pytest.mark.parametrize("package", SOURCES)
def test_no_import_crosses_a_layer(package: str) -> None:
    found = found_imports(package)
    assert found, f"no imports found in {package}: this test would see nothing"
    broken = [
        f"{where}: {module} imports {name}: {rule}"
        for module, name, where in found
        if (rule := broken_rule(module, name))
    ]
    assert not broken, "\n".join(broken)


def test_every_layer_named_here_exists() -> None:
    there = {module for module, _ in modules(E)}
    assert set(BELOW) <= there
    assert f"{E}.adapters.vllm" in there


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tokendance_sdk.client", "import tokendance_engine.config"),
        ("tokendance_sdk.client", "from tokendance_engine import config"),
        (f"{E}.segments.key", f"from {E}.storage import pool"),
        (f"{E}.kernels.rope", f"from {E}.segments.key import Key"),
        (f"{E}.storage.pool", f"import {E}.reuse.plan"),
        (f"{E}.reuse.collector", f"from {E}.adapters.vllm import pages"),
        (f"{E}.reuse.collector", "def f():\n    from vllm import LLM"),
        (f"{E}.segments.key", "from ..storage import pool"),
        (f"{E}.reuse.plan", "from tokendance_sdk.client import TokenDance"),
    ],
)
def test_a_forbidden_import_is_caught(module: str, line: str) -> None:
    names = [name for name, _ in imports(ast.parse(line), module, is_package=False)]
    assert any(broken_rule(module, name) for name in names), names


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (f"{E}.adapters.vllm.connector", "from vllm.config import VllmConfig"),
        (f"{E}.frontend.separator", "import vllm"),
        (f"{E}.storage.pool", f"from {E}.kernels.rope import rotate"),
        (f"{E}.reuse.plan", f"from {WIRE} import Fidelity"),
    ],
)
def test_an_allowed_import_passes(module: str, line: str) -> None:
    names = [name for name, _ in imports(ast.parse(line), module, is_package=False)]
    assert not any(broken_rule(module, name) for name in names), names
