#!/usr/bin/env bash
# Private servers for tests: free ports on 127.0.0.1, all files in one directory.
#
#   scripts/servers.sh start DIR [ENGINE...]   start these or all, side by side; DIR must be empty or missing.
#                                              `. DIR/env` then tells the tests where they are
#   scripts/servers.sh ENGINE DIR              start one: anew, or with the data and the port it had in DIR, also after
#                                              a kill -9. Its process is DIR/ENGINE/pid (PostgreSQL's: DIR/pg/postmaster.pid)
#   scripts/servers.sh stop DIR                stop what was started in DIR, and nothing else
#   scripts/servers.sh lacks ENGINE            say what is not installed; nothing if it can be started
#
# ENGINE is postgres (with PgBouncer), mariadb, nats or kafka. Logs stay in DIR/log. It installs nothing: ./test does.
# With SEMEL_SERVERS_KAFKA=full Kafka gets a gigabyte and Java's optimising compiler, for measurements.
# With SEMEL_SERVERS_SYNC=off nothing waits for the disk: what was written survives a kill -9, not a power cut.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
engines=(postgres mariadb nats kafka)
me=$(id -un)
sync=${SEMEL_SERVERS_SYNC:-on}
# The time a server may take to answer, when every core is busy.
ready_seconds_max=150

die() {
    echo "servers.sh: $*" >&2
    exit 1
}

# Puts into `become` what a command needs in front to run as a user. Nothing stays in between: a signal reaches the
# command itself.
become() { # user
    become=()
    if [[ $1 != "$me" ]]; then become=(setpriv --reuid="$1" --regid="$(id -g "$1")" --init-groups --); fi
}

as() { # user, command...
    local become
    become "$1"
    "${become[@]}" "${@:2}"
}

word() {
    od -An -N16 -tx1 /dev/urandom | tr -d ' \n'
}

answers() { # port
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Below the ephemeral range, so that no outgoing connection sits on the port we chose.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + SRANDOM % 12000))
        if ! answers "$port"; then
            echo "$port"
            return
        fi
    done
    die "no free port found"
}

# A CA and a leaf, not one self-signed certificate: rustls refuses a CA as an end entity. Each server gets a copy of
# its own, because each trusts only keys of its own user.
make_certificates() { # directory
    local tls=$1
    mkdir -m 711 "$tls"
    printf '%s\n' 'subjectAltName=DNS:localhost,IP:127.0.0.1' 'basicConstraints=critical,CA:FALSE' \
        'extendedKeyUsage=serverAuth' >"$tls/leaf.ext"
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
            -subj '/CN=Semel test CA' -keyout "$tls/ca.key" -out "$tls/ca.crt"
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -subj '/CN=localhost' -keyout "$tls/server.key" -out "$tls/server.csr"
        openssl x509 -req -in "$tls/server.csr" -CA "$tls/ca.crt" -CAkey "$tls/ca.key" -CAcreateserial \
            -days 30 -extfile "$tls/leaf.ext" -out "$tls/server.crt"
    } >"$tls/openssl.log" 2>&1 || die "openssl failed: see $tls/openssl.log"
    chmod 644 "$tls/ca.crt" "$tls/server.crt"
}

# A log that the server's own user may write to.
log_of() { # user, file...
    local name
    for name in "${@:2}"; do
        touch "$dir/log/$name"
        chown "$1" "$dir/log/$name"
    done
}

# Runs a server in a session of its own, so that nothing that ends this script's process group ends it.
# The number of its process is in the file before it runs.
spawn() { # name, user, command...
    local become
    become "$2"
    # shellcheck disable=SC2016
    setsid bash -c 'echo $$ >"$0" && exec "$@"' "$dir/$1/pid" "${become[@]}" "${@:3}" </dev/null >>"$dir/log/$1.out" 2>&1 &
    spawned=$!
}

# The file may outlive its process: the number must still belong to the program that has our file among its arguments.
runs() { # name, file of its settings
    [[ -s $dir/$1/pid ]] && tr '\0' ' ' 2>/dev/null <"/proc/$(<"$dir/$1/pid")/cmdline" | grep -qF "$dir/$1/$2"
}

# Waits until the server that was spawned does what shows it is ready. Fails when it has ended instead.
ready() { # name, file of its settings, command...
    local until=$((SECONDS + ready_seconds_max))
    while ((SECONDS < until)); do
        kill -0 "$spawned" 2>/dev/null || return
        if "${@:3}" >/dev/null 2>&1 && runs "$1" "$2"; then return; fi
        sleep 0.1
    done
    end "$1" "$2"
    return 1
}

end() { # name, file of its settings
    local pid
    if runs "$1" "$2"; then
        pid=$(<"$dir/$1/pid")
        kill -TERM "$pid" 2>/dev/null || true
        if ! gone 30 runs "$1" "$2"; then
            kill -KILL "$pid" 2>/dev/null || true
            gone 10 runs "$1" "$2"
        fi
    fi
    rm -f "$dir/$1/pid"
}

# Waits until a command fails; fails itself if it never does.
gone() { # seconds, command...
    local until=$((SECONDS + $1))
    while "${@:2}"; do
        ((SECONDS <= until)) || return 1
        sleep 0.1
    done
}

# Runs a start with `port` set: the one the server had, or a free one, another if it was taken in the meantime.
on_a_port() { # what, file of the port, command...
    local port attempt
    for attempt in 1 2 3 4 5; do
        if [[ -s $2 ]]; then port=$(<"$2"); else port=$(free_port); fi
        if "${@:3}"; then
            echo "$port" >"$2"
            return
        fi
        echo "servers.sh: $1 did not start on port $port (attempt $attempt)" >&2
    done
    die "$1 does not start: see $dir/log"
}

# Keeps what one engine tells the tests.
tell() { # engine
    cat >"$dir/$1.env"
}

# shellcheck source-path=SCRIPTDIR source=servers/cache.sh
. "$here/servers/cache.sh"
# shellcheck source-path=SCRIPTDIR source=servers/postgres.sh
. "$here/servers/postgres.sh"
# shellcheck source-path=SCRIPTDIR source=servers/mariadb.sh
. "$here/servers/mariadb.sh"
# shellcheck source-path=SCRIPTDIR source=servers/nats.sh
. "$here/servers/nats.sh"
# shellcheck source-path=SCRIPTDIR source=servers/kafka.sh
. "$here/servers/kafka.sh"

# What the engines share, before the first of them starts.
lay_out() { # engine...
    local engine lacks user
    for engine in "$@"; do
        lacks=$(lacks "$engine")
        [[ -z $lacks ]] || die "$engine cannot be started, not installed: $lacks"
    done
    umask 077
    mkdir -p "$dir/log"
    # Servers have users of their own, and each must reach its own part.
    chmod 711 "$dir" "$dir/log"
    for engine in "$@"; do
        user=${engine}_user
        user=${!user:-$me}
        as "$user" test -x "$dir" || die "$engine runs as $user, who cannot reach $dir"
    done
    # Other users of this machine can reach the ports, and a superuser can run programs: hence a password.
    if [[ ! -s $dir/password ]]; then word >"$dir/password"; fi
    if [[ " $* " == *" postgres "* || " $* " == *" mariadb "* ]] && [[ ! -d $dir/tls ]]; then
        rm -rf "$dir/tls.new"
        make_certificates "$dir/tls.new"
        mv "$dir/tls.new" "$dir/tls"
    fi
    # MariaDB and Kafka hold many files open; 1024 is what they would get.
    ulimit -Sn "$(ulimit -Hn | sed 's/unlimited/65536/')" 2>/dev/null || true
}

launch() { # engine
    local began=${EPOCHREALTIME/./} said='' tenths
    "start_$1"
    tenths=$(((${EPOCHREALTIME/./} - began) / 100000))
    echo "$said, after $((tenths / 10)).$((tenths % 10)) s"
}

# Half a start is no start. Called through trap.
# shellcheck disable=SC2317
give_up() {
    local job groups code=$?
    trap - EXIT
    trap '' INT TERM
    groups=$(jobs -p)
    for job in $groups; do kill -TERM -- "-$job" 2>/dev/null || true; done
    wait
    for job in $groups; do
        gone 10 kill -0 -- "-$job" 2>/dev/null || kill -KILL -- "-$job" 2>/dev/null || true
    done
    (stop "${started[@]}") || true
    exit "$code"
}

# Starts engines side by side.
start() { # engine...
    local engine job launched=() failed=no
    started=("$@")
    # What was killed a moment ago may not be gone yet. Two servers on the same files are never right.
    for engine in "$@"; do gone 5 "runs_$engine" || die "$engine runs in $dir already"; done
    trap give_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    lay_out "$@"
    # A process group for each, so that what it runs can be ended with it.
    set -m
    for engine in "$@"; do
        launch "$engine" &
        launched+=("$!")
    done
    set +m
    for job in "${launched[@]}"; do wait "$job" || failed=yes; done
    [[ $failed == no ]] || exit 1
    cat "$dir"/*.env >"$dir/.env.new"
    mv "$dir/.env.new" "$dir/env"
    trap - EXIT INT TERM
}

# Side by side too: each may have much to write down.
stop() { # engine...
    local engine job failed=no stops=()
    for engine in "$@"; do
        "stop_$engine" &
        stops+=("$!")
    done
    for job in "${stops[@]}"; do wait "$job" || failed=yes; done
    [[ $failed == no ]] || die "something in $dir does not stop"
}

lacks() { # engine
    "lacks_$1" | sed ':all; N; $!b all; s/\n/, /g'
}

usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

engine_or_usage() {
    [[ " ${engines[*]} " == *" $1 "* ]] || usage
}

[[ $# -ge 2 ]] || usage
dir=$2
[[ $dir == /* ]] || dir=$PWD/$dir
case $1 in
    start)
        [[ ! -e $dir || -z $(ls -A "$dir") ]] || die "$dir is not empty"
        for name in "${@:3}"; do engine_or_usage "$name"; done
        if [[ $# -gt 2 ]]; then start "${@:3}"; else start "${engines[@]}"; fi
        echo "files in $dir"
        ;;
    stop)
        [[ $# -eq 2 ]] || usage
        stop "${engines[@]}"
        ;;
    lacks)
        [[ $# -eq 2 ]] || usage
        engine_or_usage "$2"
        lacks "$2"
        ;;
    *)
        [[ $# -eq 2 ]] || usage
        engine_or_usage "$1"
        start "$1"
        ;;
esac
