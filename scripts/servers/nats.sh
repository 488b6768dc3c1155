# shellcheck shell=bash disable=SC2034,SC2154
# NATS with JetStream. Sourced by scripts/servers.sh.

lacks_nats() {
    have_nats || echo "nats-server $nats_version (scripts/fetch.sh nats)"
}

# The server greets with its name. Ours is like no other, so a stranger on the port is not mistaken for it; and
# JetStream is up before the port is open.
nats_greets() { # name
    local greeting
    greeting=$(exec 3<>"/dev/tcp/127.0.0.1/$port" && read -r -t 5 line <&3 && echo "$line") 2>/dev/null
    [[ $greeting == *"\"server_name\":\"$1\""* && $greeting == *'"jetstream":true'* ]]
}

run_nats() {
    local home=$dir/nats name
    name=semel-$(word)
    # Without `always`, what was acknowledged reaches the disk two minutes later. Benches also measure that.
    cat >"$home/nats.conf" <<CONF
server_name: "$name"
listen: "127.0.0.1:$port"
log_file: "$dir/log/nats.log"
jetstream {
    store_dir: "$home/data"
    sync_interval: $([[ $sync == on ]] && echo always || echo 2m)
    max_memory_store: 256MB
    max_file_store: 4GB
}
CONF
    spawn nats "$me" "$nats_program" --config "$home/nats.conf"
    ready nats nats.conf nats_greets "$name"
}

start_nats() {
    mkdir -p "$dir/nats"
    on_a_port NATS "$dir/nats/port" run_nats
    tell nats <<ENV
export SEMEL_TEST_NATS='nats://127.0.0.1:$(<"$dir/nats/port")'
export SEMEL_TEST_NATS_BIN='$nats_program'
ENV
    said="NATS $nats_version with JetStream on 127.0.0.1:$(<"$dir/nats/port")"
}

runs_nats() {
    runs nats nats.conf
}

stop_nats() {
    end nats nats.conf
}
