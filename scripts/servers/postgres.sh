# shellcheck shell=bash disable=SC2034,SC2154
# PostgreSQL, and PgBouncer in front of it. Sourced by scripts/servers.sh.

# Both refuse to run as root; Debian's package brings this user.
postgres_user=$me
if [[ $me == root ]]; then postgres_user=postgres; fi

find_pg_bin() {
    local place
    for place in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
        if [[ -x $place/initdb && -x $place/postgres ]]; then
            echo "$place"
            return
        fi
    done
    place=$(command -v initdb) && dirname "$(readlink -f "$place")"
}

find_pgbouncer() {
    command -v pgbouncer || command -v /usr/sbin/pgbouncer
}

lacks_postgres() {
    find_pg_bin >/dev/null || echo "PostgreSQL's server programs"
    find_pgbouncer >/dev/null || echo "pgbouncer"
    command -v openssl >/dev/null || echo "openssl"
    id "$postgres_user" >/dev/null 2>&1 || echo "a user '$postgres_user' to run PostgreSQL as"
}

runs_postgres() {
    [[ -s $dir/pg/postmaster.pid ]] && as "$postgres_user" "$(find_pg_bin)/pg_ctl" --pgdata="$dir/pg" status >/dev/null 2>&1
}

make_cluster() {
    # Whole or not at all: a start that was cut short begins again.
    rm -rf "$dir/pg.new"
    install -d -m 700 -o "$postgres_user" "$dir/pg.new"
    install -m 600 -o "$postgres_user" "$dir/password" "$dir/pg.new.password"
    as "$postgres_user" "$pg_bin/initdb" --pgdata="$dir/pg.new" --username=semel --pwfile="$dir/pg.new.password" --encoding=UTF8 \
        --locale=C --auth=scram-sha-256 --no-sync >"$dir/log/initdb.log" || die "initdb failed: see $dir/log/initdb.log"
    rm "$dir/pg.new.password"
    install -m 600 -o "$postgres_user" "$dir/tls/server.crt" "$dir/tls/server.key" "$dir/pg.new"
    mv "$dir/pg.new" "$dir/pg"
}

run_postgres() {
    cat >"$dir/pg/postgresql.auto.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
max_connections = 200
max_prepared_transactions = 16
shared_buffers = 64MB
max_wal_size = 256MB
fsync = $sync
ssl = on
ssl_cert_file = 'server.crt'
ssl_key_file = 'server.key'
timezone = 'UTC'
log_line_prefix = '%m [%p] %d '
CONF
    chown "$postgres_user" "$dir/pg/postgresql.auto.conf"
    as "$postgres_user" "$pg_bin/pg_ctl" --pgdata="$dir/pg" --log="$dir/log/postgres.log" --wait --timeout=60 \
        start >>"$dir/log/pg_ctl.log" 2>&1 </dev/null
}

# Any database name and the one user pass through. Few server connections per database, given back soon:
# every test has a database of its own.
run_pgbouncer() {
    printf '"semel" "%s"\n' "$(<"$dir/password")" >"$dir/bouncer/users"
    cat >"$dir/bouncer/pgbouncer.ini" <<CONF
[databases]
* = host=127.0.0.1 port=$(<"$dir/pg.port")
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
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
    chown "$postgres_user" "$dir/bouncer" "$dir/bouncer"/*
    as "$postgres_user" "$(find_pgbouncer)" -q -d "$dir/bouncer/pgbouncer.ini" </dev/null >>"$dir/log/pgbouncer.out" 2>&1 || return
    for _ in {1..50}; do
        if answers "$port" && runs bouncer pgbouncer.ini; then return; fi
        sleep 0.1
    done
    return 1
}

start_postgres() {
    local pg_bin
    pg_bin=$(find_pg_bin)
    # It has nothing to keep, and its pool may hold connections to a server that was killed.
    end bouncer pgbouncer.ini
    log_of "$postgres_user" postgres.log pgbouncer.log
    mkdir -p "$dir/bouncer"
    if [[ ! -d $dir/pg ]]; then make_cluster; fi
    on_a_port PostgreSQL "$dir/pg.port" run_postgres
    on_a_port PgBouncer "$dir/bouncer.port" run_pgbouncer
    tell postgres <<ENV
export SEMEL_TEST_POSTGRES='postgres://semel:$(<"$dir/password")@127.0.0.1:$(<"$dir/pg.port")/postgres'
export SEMEL_TEST_PGBOUNCER='postgres://semel:$(<"$dir/password")@127.0.0.1:$(<"$dir/bouncer.port")/postgres'
export SEMEL_TEST_PG_BIN='$pg_bin'
export SEMEL_TEST_PG_OS_USER='$postgres_user'
export SEMEL_TEST_PG_CA='$dir/tls/ca.crt'
ENV
    said="PostgreSQL $("$pg_bin/postgres" -V | grep -o '[0-9.]*' | head -1) on 127.0.0.1:$(<"$dir/pg.port"), \
PgBouncer (transaction mode) on 127.0.0.1:$(<"$dir/bouncer.port")"
}

stop_postgres() {
    local pg_bin
    end bouncer pgbouncer.ini
    [[ -s $dir/pg/postmaster.pid ]] || return 0
    pg_bin=$(find_pg_bin)
    as "$postgres_user" "$pg_bin/pg_ctl" --pgdata="$dir/pg" --mode=fast --timeout=30 stop >/dev/null 2>&1 ||
        as "$postgres_user" "$pg_bin/pg_ctl" --pgdata="$dir/pg" --mode=immediate stop >/dev/null 2>&1 ||
        ! runs_postgres
}
