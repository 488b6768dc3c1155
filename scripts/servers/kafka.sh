# shellcheck shell=bash disable=SC2034,SC2154
# Kafka: one node that is broker and controller. Sourced by scripts/servers.sh.

java_version_min=17

find_java() {
    local java version
    for java in "$(command -v java || true)" $(printf '%s\n' /usr/lib/jvm/*/bin/java | sort -rV); do
        [[ -x $java ]] || continue
        version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
        if [[ ${version:-0} -ge $java_version_min ]]; then
            readlink -f "$java"
            return
        fi
    done
    return 1
}

lacks_kafka() {
    find_java >/dev/null || echo "Java $java_version_min"
    have_kafka || echo "Kafka $kafka_version (scripts/fetch.sh kafka)"
}

java_of_kafka() {
    # Quick to start, or as Kafka's own script starts it: then the code is optimised while it runs.
    local options=(-Xms128m -Xmx320m -XX:+UseSerialGC -XX:TieredStopAtLevel=1)
    if [[ ${SEMEL_SERVERS_KAFKA:-small} == full ]]; then options=(-server -Xms1g -Xmx1g -XX:+UseG1GC); fi
    printf '%s\0' "$java" "${options[@]}" -Djava.awt.headless=true \
        -Dlog4j2.configurationFile="file:$home/log4j2.properties" -cp "$kafka_libs/*" "$@"
}

settings_of_kafka() { # broker's port, controller's port
    cat <<CONF
process.roles=broker,controller
node.id=1
listeners=BROKER://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2
advertised.listeners=BROKER://127.0.0.1:$1
controller.quorum.voters=1@127.0.0.1:$2
controller.listener.names=CONTROLLER
inter.broker.listener.name=BROKER
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$home/data
auto.create.topics.enable=false
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Tests wait for these.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
# After a kill it registers again only when its earlier life has timed out. Shorter, and a busy machine fences a broker
# that lives.
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
# Little memory, few threads.
log.cleaner.dedupe.buffer.size=4194304
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=4
background.threads=2
CONF
}

run_kafka() {
    local home=$dir/kafka began cluster command=()
    settings_of_kafka "$port" "$(free_port)" >"$home/server.properties"
    if [[ ! -f $home/formatted ]]; then
        rm -rf "$home/data"
        # It wants 16 bytes in base64. A is six zero bits.
        cluster=$(word)
        cluster=${cluster:0:21}A
        readarray -d '' -t command < <(java_of_kafka kafka.tools.StorageTool format --config "$home/server.properties" \
            --cluster-id "$cluster")
        "${command[@]}" >"$dir/log/kafka-format.log" 2>&1 </dev/null || die "Kafka's format failed: see $dir/log/kafka-format.log"
        : >"$home/formatted"
    fi
    began=$(stat -c %s "$dir/log/kafka.log")
    readarray -d '' -t command < <(java_of_kafka kafka.Kafka "$home/server.properties")
    spawn kafka "$me" "${command[@]}"
    ready kafka server.properties kafka_says_started "$began"
}

kafka_says_started() { # where in the log this start began
    tail -c +"$(($1 + 1))" "$dir/log/kafka.log" | grep -q 'Kafka Server started'
}

start_kafka() {
    local home=$dir/kafka java
    java=$(find_java)
    mkdir -p "$home"
    log_of "$me" kafka.log
    cat >"$home/log4j2.properties" <<CONF
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = $dir/log/kafka.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
CONF
    on_a_port Kafka "$home/port" run_kafka
    tell kafka <<ENV
export SEMEL_TEST_KAFKA='127.0.0.1:$(<"$home/port")'
export SEMEL_TEST_KAFKA_LIBS='$kafka_libs'
export SEMEL_TEST_JAVA='$java'
ENV
    said="Kafka $kafka_version on 127.0.0.1:$(<"$home/port")"
}

runs_kafka() {
    runs kafka server.properties
}

stop_kafka() {
    end kafka server.properties
}
