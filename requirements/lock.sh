#!/usr/bin/env bash
# Regenerates the locks: requirements/lock.sh [--upgrade]. Needs `uv` on the PATH (or in $UV).
# `make setup` installs them with `pip install --no-deps`, because pip itself cannot leave packages out.
# Where PyTorch's CPU build comes from a folder, name the folder in PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "$0")"
UV=${UV:-uv}
common=(--python-version 3.11 --no-annotate --no-header --quiet "$@")
[ -z "${PIP_FIND_LINKS:-}" ] || common+=(--find-links "$PIP_FIND_LINKS" --no-emit-find-links)

compile() { # name, further arguments
    local name=$1 lock
    shift
    lock=$(mktemp)
    # Without --upgrade, uv keeps the versions it finds in the output file.
    cp "$name.txt" "$lock" 2>/dev/null || true
    "$UV" pip compile "$name.in" --output-file "$lock" "${common[@]}" "$@"
    # A local version (+cpu) exists in some places only; pip takes it by itself where it is offered.
    { echo "# Made by requirements/lock.sh from $name.in; install with --no-deps."; grep -v '^#' "$lock" | sed 's/+cpu$//'; } >"$name.txt"
    rm -f "$lock"
}

compile engine --override overrides.txt
compile sdk
