# shellcheck shell=bash
# How a peer is installed and started; sourced by the `run` of each.
#
#   run PORT DIR      installs if needed, then becomes the service on 127.0.0.1:PORT, with its files in DIR
#   run --install     installs only
#
# What is installed goes to SEMEL_PEERS_DIR, or a directory beside other temporary files.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$here")
cache=${SEMEL_PEERS_DIR:-${TMPDIR:-/tmp}/semel-peers}/$name
export PAYMENTS=$here/../payments

die() {
    echo "$name: $*" >&2
    exit 1
}

# Installs again only if this file changed.
fresh() { # file
    mkdir -p "$cache"
    cmp -s "$1" "$cache/installed" && return
    "install_${1##*.}" "$1" >"$cache/install.log" 2>&1 || die "not installed: see $cache/install.log"
    cp "$1" "$cache/installed"
}

install_json() {
    cp "$here"/package*.json "$cache"/ && (cd "$cache" && npm ci --no-audit --no-fund)
}

install_txt() {
    python3 -m venv "$cache/venv" && "$cache/venv/bin/pip" install -q --disable-pip-version-check -r "$1"
}

# Sets port, dir and EFFECTS, or stops after the installation.
arguments() {
    [[ ${1:-} == --install ]] && exit 0
    [[ $# -eq 2 ]] || die "usage: run PORT DIR, or run --install"
    port=$1
    mkdir -p "$2"
    dir=$(cd "$2" && pwd)
    export EFFECTS=$dir/effects
}

needs_redis() {
    [[ -n ${REDIS_URL:-} ]] || die "set REDIS_URL to a server of its own; peers/redis/run starts one"
}

node_peer() {
    fresh "$here/package-lock.json"
    arguments "$@"
    [[ $name == express-idempotency ]] || needs_redis
    NODE_PATH=$cache/node_modules exec node "$here/server.js" "$port" "$EFFECTS"
}

python_peer() {
    fresh "$here/requirements.txt"
    arguments "$@"
    grep -q '^redis==' "$here/requirements.txt" && needs_redis
    export PYTHONPATH=$PAYMENTS:$here PYTHONDONTWRITEBYTECODE=1
    if grep -q '^uvicorn==' "$here/requirements.txt"; then
        exec "$cache/venv/bin/uvicorn" app:app --host 127.0.0.1 --port "$port" --log-level warning
    fi
    exec "$cache/venv/bin/python" "$here/app.py" "$port"
}

# Unoptimised: it builds in half the time, and nothing here is measured.
cargo_peer() { # toolchain or nothing, then as run
    local toolchain=$1
    shift
    mkdir -p "$cache"
    CARGO_PROFILE_DEV_DEBUG=0 cargo ${toolchain:++"$toolchain"} build -q --locked --manifest-path "$here/Cargo.toml" \
        --target-dir "$cache" >"$cache/install.log" 2>&1 || die "not built: see $cache/install.log"
    arguments "$@"
    exec "$cache/debug/$(sed -n 's/^name = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -1)" "$port" "$EFFECTS"
}
