# shellcheck shell=bash disable=SC2034,SC2154
# MariaDB. Sourced by scripts/servers.sh.

# It refuses to run as root. Debian's mariadb-server brings this user, mariadb-server-core does not.
mariadb_user=$me
if [[ $me == root ]]; then mariadb_user=$(id -un mysql 2>/dev/null || echo nobody); fi
# What the kernel takes as the path of a socket.
socket_chars_max=107

find_mariadbd() {
    command -v mariadbd || command -v /usr/sbin/mariadbd
}

lacks_mariadb() {
    find_mariadbd >/dev/null || echo "mariadbd"
    command -v mariadb-install-db >/dev/null || echo "mariadb-install-db"
    command -v mariadb >/dev/null || echo "the client mariadb"
    command -v openssl >/dev/null || echo "openssl"
}

# Nothing of /etc/mysql is read: what a machine's own server is set to is no business of ours.
make_datadir() {
    local home=$dir/mariadb
    rm -rf "$home/data.new"
    # root comes in through the socket and as the system's root alone, so there is no password to guess. Nothing is
    # flushed while the tables are made: before the server runs there is nothing to lose.
    as "$mariadb_user" mariadb-install-db --no-defaults --datadir="$home/data.new" --skip-test-db --skip-name-resolve \
        --auth-root-authentication-method=socket --auth-root-socket-user="$mariadb_user" --debug-no-sync \
        --innodb-log-file-size=32M >"$dir/log/mariadb-install-db.log" 2>&1 </dev/null ||
        die "mariadb-install-db failed: see $dir/log/mariadb-install-db.log"
    mv "$home/data.new" "$home/data"
}

run_mariadb() {
    local home=$dir/mariadb
    cat >"$home/my.cnf" <<CONF
[mariadbd]
datadir = $home/data
bind-address = 127.0.0.1
port = $port
socket = $home/socket
log-error = $dir/log/mariadb.log
init-file = $home/init.sql
innodb-flush-log-at-trx-commit = 1
$([[ $sync == on ]] || echo debug-no-sync)
innodb-buffer-pool-size = 96M
innodb-log-file-size = 32M
max-connections = 300
max-allowed-packet = 64M
skip-log-bin
performance-schema = off
skip-name-resolve
default-time-zone = +00:00
# As Debian sets it; the program itself would take latin1.
character-set-server = utf8mb4
collation-server = utf8mb4_general_ci
ssl-ca = $home/ca.crt
ssl-cert = $home/server.crt
ssl-key = $home/server.key
[client]
host = 127.0.0.1
port = $port
user = semel
password = $(<"$dir/password")
CONF
    chown "$mariadb_user" "$home/my.cnf"
    spawn mariadb "$mariadb_user" "$(find_mariadbd)" --defaults-file="$home/my.cnf"
    # Our password is good for our server only.
    ready mariadb my.cnf mariadb --defaults-file="$home/my.cnf" -e 'DO 1'
}

start_mariadb() {
    local home=$dir/mariadb version
    [[ ${#home} -lt $((socket_chars_max - 7)) ]] || die "$home is too long a path for a socket"
    install -d -m 700 -o "$mariadb_user" "$home"
    log_of "$mariadb_user" mariadb.log
    install -m 600 -o "$mariadb_user" "$dir/tls/ca.crt" "$dir/tls/server.crt" "$dir/tls/server.key" "$home"
    # At every start, so that a first start that was cut short does no harm.
    cat >"$home/init.sql" <<SQL
CREATE DATABASE IF NOT EXISTS semel;
CREATE USER IF NOT EXISTS semel@'%' IDENTIFIED BY '$(<"$dir/password")';
GRANT ALL PRIVILEGES ON *.* TO semel@'%' WITH GRANT OPTION;
SQL
    chown "$mariadb_user" "$home/init.sql"
    if [[ ! -d $home/data ]]; then make_datadir; fi
    on_a_port MariaDB "$home/port" run_mariadb
    tell mariadb <<ENV
export SEMEL_TEST_MARIADB='mysql://semel:$(<"$dir/password")@127.0.0.1:$(<"$home/port")/semel'
export SEMEL_TEST_MARIADB_BIN='$(dirname "$(find_mariadbd)")'
export SEMEL_TEST_MARIADB_OS_USER='$mariadb_user'
export SEMEL_TEST_MARIADB_CA='$dir/tls/ca.crt'
ENV
    version=$("$(find_mariadbd)" --no-defaults --version)
    version=${version##*Ver }
    said="MariaDB ${version%%-*} on 127.0.0.1:$(<"$home/port")"
}

runs_mariadb() {
    runs mariadb my.cnf
}

stop_mariadb() {
    end mariadb my.cnf
}
