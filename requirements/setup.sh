#!/usr/bin/env bash
# Makes or updates one environment: setup.sh FOLDER LOCK PYTHON STAMP (called by the Makefile).
set -euo pipefail
folder=$1 lock=requirements/$2.txt python=$3 stamp=$4
cd "$(dirname "$0")/.."

requirements/system.sh "$2" "$python"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "error: $("$python" --version) is not what the locks were made for; set PYTHON to a Python 3.11" >&2
    exit 1
}
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
# --no-deps: the lock is complete, and leaves out on purpose what breaks a CPU vLLM (overrides.txt).
"${pip[@]}" install --quiet --no-deps --no-compile -r "$lock"
"${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
"$folder/bin/python" requirements/vllm_name.py
if [ "$2" = engine ]; then
    "$folder/bin/python" - <<'PY'
import sys
import torch
if torch.version.cuda is not None:
    sys.exit(
        f"error: torch {torch.__version__} is a CUDA build, which does not match vLLM's CPU build; give pip PyTorch's "
        "CPU index (PIP_EXTRA_INDEX_URL) or a folder with the +cpu wheel (PIP_FIND_LINKS), and run make distclean setup"
    )
PY
fi
rm -f "$folder"/.ready-*
touch "$stamp"
