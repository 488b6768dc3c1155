#!/usr/bin/env bash
# Other implementations of idempotency, as services on free ports of 127.0.0.1; peers/README.md lists them.
#
#   scripts/peers.sh start DIR [NAME...]   start these, or all; print name, URL, counter and needed header of each
#   scripts/peers.sh stop DIR              stop what `start DIR` started, and nothing else
#   scripts/peers.sh list DIR              print them again
#   scripts/peers.sh kill DIR NAME         kill -9 one; `up DIR NAME` starts it again, on its port, with its files
#   scripts/peers.sh store-stop DIR NAME   kill its Redis; `store-start DIR NAME` starts that again, with its records
#
# The first start installs them from npm, PyPI and crates.io, into SEMEL_PEERS_DIR if that is set; it takes minutes.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
all=(express-idempotency node-idempotency asgi-idempotency-header powertools django-idempotency-key fastapi-idempotency
    idemkit axum-idempotent idempotent idempotent-proxy-server)

die() {
    echo "peers.sh: $*" >&2
    exit 1
}

# Below the ephemeral range, so that no outgoing connection sits on a port between two lives of its owner.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        if ! listens "$port"; then
            echo "$port"
            return
        fi
    done
    die "no free port found"
}

listens() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

port_of() { # peer or part of it
    [[ -s $dir/$1/port ]] || { mkdir -p "$dir/$1" && free_port >"$dir/$1/port"; }
    cat "$dir/$1/port"
}

needs_redis() {
    case $1 in express-idempotency | fastapi-idempotency | axum-idempotent) return 1 ;; esac
}

# Starts one process on its port and waits until it listens.
launch() { # where its port and files are, then the program
    local place=$1 program=$2 port
    port=$(port_of "$place")
    listens "$port" && die "$place: something listens on its port $port already"
    "$program" "$port" "$dir/$place/files" </dev/null >>"$dir/$place/log" 2>&1 &
    echo $! >"$dir/$place/pid"
    for _ in {1..600}; do
        listens "$port" && return
        kill -0 "$(cat "$dir/$place/pid")" 2>/dev/null || break
        sleep 0.1
    done
    rm -f "$dir/$place/pid"
    die "$place did not start: see $dir/$place/log"
}

# Ends one process, by its id, and waits until it is gone.
end() { # where its pid is
    local pid
    [[ -s $dir/$1/pid ]] || return 0
    pid=$(cat "$dir/$1/pid")
    kill -KILL "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    rm -f "$dir/$1/pid"
}

up() {
    needs_redis "$1" && REDIS_URL=redis://127.0.0.1:$(port_of "$1/redis")/0 && export REDIS_URL
    [[ $1 == idempotent-proxy-server ]] && PLAIN_URL=http://127.0.0.1:$(port_of "$1/plain") && export PLAIN_URL
    launch "$1" "$root/peers/$1/run"
}

start_one() {
    # Installing may take longer than a start is given.
    "$root/peers/$1/run" --install || return 1
    if needs_redis "$1"; then launch "$1/redis" "$root/peers/redis/run"; fi
    if [[ $1 == idempotent-proxy-server ]]; then launch "$1/plain" "$root/peers/plain/run"; fi
    up "$1"
}

list() {
    local name base counter path header
    printf 'name\turl\tcounter\theader\n'
    for name in "${all[@]}"; do
        [[ -s $dir/$name/pid ]] || continue
        base=http://127.0.0.1:$(port_of "$name")
        path=/payments counter=$base header=-
        case $name in
        # Its routes are names of settings, and whoever is behind it counts.
        idempotent-proxy-server) path=/URL_payments counter=http://127.0.0.1:$(port_of "$name/plain") ;;
        # It protects requests of a session only; any id will do.
        axum-idempotent) header='Cookie: session=AAAAAAAAAAAAAAAAAAAAAA' ;;
        esac
        printf '%s\t%s\t%s\t%s\n' "$name" "$base$path" "$counter/count/{tag}" "$header"
    done
}

[[ $# -ge 2 ]] || die "usage: start DIR [NAME...], stop DIR, list DIR, or kill, up, store-stop, store-start DIR NAME"
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2
[[ $verb =~ ^(start|stop|list)$ || -d $root/peers/${1:-/none} ]] || die "no peer ${1:-is named}"

case $verb in
start)
    code=0
    names=("$@")
    [[ $# -gt 0 ]] || names=("${all[@]}")
    "$root/peers/redis/run" --install
    for name in "${names[@]}"; do
        (start_one "$name") || { echo "peers.sh: $name is missing" >&2 && code=1; }
    done
    list
    exit "$code"
    ;;
stop)
    for name in "${all[@]}"; do
        for place in "$name" "$name/plain" "$name/redis"; do end "$place"; done
    done
    ;;
list) list ;;
kill) end "$1" ;;
up) up "$1" ;;
store-stop) end "$1/redis" ;;
store-start) launch "$1/redis" "$root/peers/redis/run" ;;
*) die "unknown verb $verb" ;;
esac
