#!/usr/bin/env bash
# Runs uv with the given arguments: a private copy in .uv, the machine's own, or one that pip installs now.
# uv ignores pip's settings, so pip's package index and certificates are passed on here, at run time only.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

find_uv() {
    uv=$root/.uv/bin/uv
    works "$uv" && return
    uv=$(command -v uv) && works "$uv" && return
    uv=$root/.uv/bin/uv
    fetch_uv >&2 && works "$uv"
}

works() { "$1" --version >/dev/null 2>&1; }

fetch_uv() {
    local boot=$python
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv "$root/.uv/boot" >/dev/null 2>&1 || return 1
        boot=$root/.uv/boot/bin/python
    fi
    "$boot" -m pip install -q --upgrade --target "$root/.uv" uv
}

# Some versions of `pip config get` miss the system's file; `list` reads them all.
pip_setting() { "$python" -m pip config list 2>/dev/null | sed -nE "s/^(global|install)\.$1='(.*)'\$/\2/p" | tail -n 1; }

use_pip_settings() {
    local index=${PIP_INDEX_URL:-$(pip_setting index-url)} cert=${PIP_CERT:-$(pip_setting cert)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX=$index UV_INDEX_URL=$index  # the second is the name in older versions
    fi
    if [ -n "$cert" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$cert; fi
    # Users without a writable home keep the cache beside the project.
    if [ ! -w "${HOME:-/nonexistent}" ]; then export UV_CACHE_DIR=${UV_CACHE_DIR:-$root/.uv/cache}; fi
}

if ! find_uv; then
    echo "uv is not installed and could not be installed with $python -m pip." >&2
    exit 127
fi
use_pip_settings
exec "$uv" "$@"
