#!/usr/bin/env bash
# Builds .venv with exactly the packages of requirements.lock, and holdfast itself, editable.
# As root or not, on any Python from 3.11: with uv if it is available, else with venv and pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

main() {
    PYTHON=$(find_python) || die "No Python 3.11 or newer found. Install one, or name it: make setup PYTHON=/path/to/python3"
    export PYTHON
    drop_a_broken_venv
    can_bootstrap || install_bootstrap || die "This Python has neither pip nor venv. Install them (Debian: apt-get install python3-venv) or uv, then run make setup again."
    with_uv || { echo "uv failed; using venv and pip instead." >&2; with_pip; } || die "The packages of requirements.lock could not be installed; see the reason above."
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if is_recent "$name"; then echo "$name"; return; fi
    done
    return 1
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

drop_a_broken_venv() { if [ -e .venv ] && ! is_recent .venv/bin/python; then rm -rf .venv; fi; }

can_bootstrap() {
    "$PYTHON" -c 'import pip' 2>/dev/null || "$PYTHON" -c 'import ensurepip' 2>/dev/null || command -v uv >/dev/null || [ -x .uv/bin/uv ]
}

install_bootstrap() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null && can_bootstrap
}

with_uv() {
    { [ -e .venv ] || tools/uv.sh venv -q --python "$PYTHON" .venv; } &&
        tools/uv.sh pip sync -q --python .venv/bin/python --require-hashes requirements.lock &&
        tools/uv.sh pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
}

with_pip() {
    rm -rf .venv
    "$PYTHON" -m venv .venv &&
        .venv/bin/python -m pip install -q --require-hashes -r requirements.lock &&
        .venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
}

die() { echo "setup: $*" >&2; exit 1; }

main
