#!/usr/bin/env bash
# Makes sure of the few system parts that pip cannot bring: system.sh engine|sdk PYTHON.
# Installs them with apt where that is possible, and otherwise says which are missing.
set -euo pipefail
missing=()
"$2" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "$1" = engine ]; then
    # vLLM's CPU kernels are linked against it.
    "$2" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=(libnuma1)
    # torch compiles small C++ kernels when vLLM runs without --enforce-eager.
    command -v g++ >/dev/null || missing+=(g++)
fi
[ ${#missing[@]} -gt 0 ] || exit 0
run=()
[ "$(id -u)" = 0 ] || run=(sudo)
if ! command -v apt-get >/dev/null || { [ ${#run[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
    echo "error: this machine lacks ${missing[*]} (Debian's names); install them and try again" >&2
    exit 1
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
