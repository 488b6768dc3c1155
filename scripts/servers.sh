#!/usr/bin/env bash
# Private PostgreSQL and PgBouncer for tests: free ports on 127.0.0.1, all files in one directory.
#
#   scripts/servers.sh start DIR    start them; `. DIR/env` then tells the tests where they are
#   scripts/servers.sh stop DIR     stop what `start DIR` started, and nothing else
#
# DIR must be empty or missing. Logs stay in DIR/log. It installs nothing: ./test does.
set -euo pipefail

die() {
    echo "servers.sh: $*" >&2
    exit 1
}

# PostgreSQL and PgBouncer refuse to run as root; Debian's package brings the user `postgres`.
os_user=$(id -un)
if [[ $os_user == root ]]; then os_user=postgres; fi

as_server() {
    if [[ $(id -un) == "$os_user" ]]; then "$@"; else runuser -u "$os_user" -- "$@"; fi
}

find_pg_bin() {
    local dir
    for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
        if [[ -x $dir/initdb && -x $dir/postgres ]]; then
            echo "$dir"
            return
        fi
    done
    dir=$(command -v initdb) && dirname "$(readlink -f "$dir")"
}

# Below the ephemeral range, so that no outgoing connection sits on the port we chose.
free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
    die "no free port found"
}

# A CA and a leaf, not one self-signed certificate: rustls refuses a CA as an end entity.
make_certificates() {
    local tls=$1
    mkdir -p "$tls"
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
    chmod 600 "$tls"/*.key
}

start_postgres() {
    local attempt
    as_server "$pg_bin/initdb" --pgdata="$dir/pg" --username=semel --pwfile="$dir/password" --encoding=UTF8 \
        --locale=C --auth=scram-sha-256 --no-sync >"$dir/log/initdb.log" || die "initdb failed: see $dir/log/initdb.log"
    for attempt in 1 2 3 4 5; do
        pg_port=$(free_port)
        cat >"$dir/pg/postgresql.auto.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $pg_port
unix_socket_directories = ''
max_connections = 200
max_prepared_transactions = 16
shared_buffers = 64MB
max_wal_size = 256MB
fsync = on
ssl = on
ssl_cert_file = '$dir/tls/server.crt'
ssl_key_file = '$dir/tls/server.key'
timezone = 'UTC'
log_line_prefix = '%m [%p] %d '
CONF
        if as_server "$pg_bin/pg_ctl" --pgdata="$dir/pg" --log="$dir/log/postgres.log" --wait --timeout=60 \
            start >>"$dir/log/pg_ctl.log" 2>&1 </dev/null; then
            return
        fi
        echo "servers.sh: PostgreSQL did not start on port $pg_port (attempt $attempt)" >&2
    done
    die "PostgreSQL does not start: see $dir/log/postgres.log"
}

# Any database name and the one user pass through. Few server connections per database, given back soon:
# every test has a database of its own.
start_pgbouncer() {
    local attempt bouncer
    bouncer=$(command -v pgbouncer || command -v /usr/sbin/pgbouncer) || die "pgbouncer is not installed"
    printf '"semel" "%s"\n' "$password" >"$dir/bouncer/users"
    for attempt in 1 2 3 4 5; do
        bouncer_port=$(free_port)
        cat >"$dir/bouncer/pgbouncer.ini" <<CONF
[databases]
* = host=127.0.0.1 port=$pg_port
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $bouncer_port
unix_socket_dir =
auth_type = scram-sha-256
auth_file = $dir/bouncer/users
admin_users = semel
pool_mode = transaction
max_client_conn = 500
default_pool_size = 8
server_idle_timeout = 5
autodb_idle_timeout = 10
ignore_startup_parameters = extra_float_digits
logfile = $dir/log/pgbouncer.log
pidfile = $dir/bouncer/pid
CONF
        chown "$os_user" "$dir/bouncer" "$dir/bouncer"/*
        as_server "$bouncer" -q -d "$dir/bouncer/pgbouncer.ini" </dev/null >>"$dir/log/pgbouncer.out" 2>&1 || true
        for _ in {1..50}; do
            if (exec 3<>"/dev/tcp/127.0.0.1/$bouncer_port") 2>/dev/null && [[ -s $dir/bouncer/pid ]]; then return; fi
            sleep 0.1
        done
        echo "servers.sh: PgBouncer did not start on port $bouncer_port (attempt $attempt)" >&2
    done
    die "PgBouncer does not start: see $dir/log/pgbouncer.log and pgbouncer.out"
}

start() {
    local tool pg_bin pg_port bouncer_port password
    for tool in openssl od; do
        command -v "$tool" >/dev/null || die "$tool is not installed"
    done
    pg_bin=$(find_pg_bin) || die "PostgreSQL's server programs are not installed"
    id "$os_user" >/dev/null 2>&1 || die "no user '$os_user' to run the servers as"

    umask 077
    mkdir -p "$dir"
    [[ -z $(ls -A "$dir") ]] || die "$dir is not empty"
    # Half a start is no start.
    trap '[[ $? -eq 0 ]] || stop' EXIT
    mkdir "$dir/log" "$dir/bouncer"
    # Other users of this machine can reach the port, and the superuser can run programs: hence a password.
    password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    echo "$password" >"$dir/password"
    make_certificates "$dir/tls"
    chown -R "$os_user" "$dir"

    start_postgres
    start_pgbouncer
    cat >"$dir/env" <<ENV
export SEMEL_TEST_POSTGRES='postgres://semel:$password@127.0.0.1:$pg_port/postgres'
export SEMEL_TEST_PGBOUNCER='postgres://semel:$password@127.0.0.1:$bouncer_port/postgres'
export SEMEL_TEST_PG_BIN='$pg_bin'
export SEMEL_TEST_PG_OS_USER='$os_user'
export SEMEL_TEST_PG_CA='$dir/tls/ca.crt'
ENV
    echo "PostgreSQL $("$pg_bin/postgres" -V | grep -o '[0-9.]*' | head -1) on 127.0.0.1:$pg_port," \
        "PgBouncer (transaction mode) on 127.0.0.1:$bouncer_port, files in $dir"
}

stop() {
    local pid pg_bin
    if [[ -s $dir/bouncer/pid ]]; then
        pid=$(<"$dir/bouncer/pid")
        # The pid file may outlive its process: check that the number still belongs to our PgBouncer.
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$dir/bouncer/pgbouncer.ini"; then
            kill -TERM "$pid"
            for _ in {1..50}; do
                [[ -d /proc/$pid ]] || break
                sleep 0.1
            done
        fi
    fi
    if [[ -s $dir/pg/postmaster.pid ]]; then
        pg_bin=$(find_pg_bin)
        as_server "$pg_bin/pg_ctl" --pgdata="$dir/pg" --mode=fast --timeout=30 stop >/dev/null 2>&1 ||
            as_server "$pg_bin/pg_ctl" --pgdata="$dir/pg" --mode=immediate stop >/dev/null
    fi
}

[[ $# -eq 2 ]] || die "usage: servers.sh start|stop DIR"
case $2 in
    /*) dir=$2 ;;
    *) dir=$PWD/$2 ;;
esac
case $1 in
    start) start ;;
    stop) stop ;;
    *) die "usage: servers.sh start|stop DIR" ;;
esac
