//! Kafka, a real broker.

use std::collections::BTreeMap;
use std::time::Instant;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Headers;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use semel_core::outbox::{Position, Taken};
use semel_core::runtime::Tokio;
use semel_workers::relay::{Relay, Settings};
use semel_workers::sinks::{Address, KafkaSink, Opened, Trouble};

use super::*;

const PARTITIONS: i32 = 3;

pub(super) fn broker() -> Option<String> {
    engine("kafka", "SEMEL_TEST_KAFKA")
}

pub(super) async fn topic(broker: &str, name: &str, settings: &[(&str, &str)]) -> String {
    let name = unique(name);
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", broker).create().unwrap();
    let new = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
    let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
    let made = admin.create_topics([&new], &AdminOptions::new()).await.unwrap();
    made.into_iter().for_each(|one| drop(one.unwrap()));
    name
}

pub(super) async fn sink(broker: &str, rest: &str) -> KafkaSink {
    KafkaSink::connect(&Address::parse(&format!("kafka://{broker}/{rest}")).unwrap()).await.unwrap()
}

pub(super) struct Read {
    pub(super) key: String,
    pub(super) text: String,
    headers: BTreeMap<String, String>,
}

/// All that is committed in a topic, in the order of each partition.
pub(super) async fn contents(broker: &str, topic: &str) -> Vec<Read> {
    let (broker, topic) = (broker.to_owned(), topic.to_owned());
    tokio::task::spawn_blocking(move || read(&broker, &topic)).await.unwrap()
}

fn read(broker: &str, topic: &str) -> Vec<Read> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("group.id", "reader")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    (0..PARTITIONS).for_each(|n| all.add_partition_offset(topic, n, Offset::Beginning).unwrap());
    consumer.assign(&all).unwrap();
    let (mut found, mut ended) = (Vec::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    while ended < PARTITIONS {
        assert!(Instant::now() < deadline, "the topic has no end");
        match consumer.poll(Duration::from_millis(200)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => eprintln!("{error}"),
            Some(Ok(message)) => {
                let text =
                    |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap();
                let headers = message.headers().unwrap().iter();
                found.push(Read {
                    key: text(message.key()),
                    text: text(message.payload()),
                    headers: headers.map(|header| (header.key.to_owned(), text(header.value))).collect(),
                });
            }
        }
    }
    found
}

/// Runs a relay until nothing waits any more.
pub(super) async fn relay_all(outbox: &Arc<MemoryOutbox>, sink: KafkaSink) {
    let relay =
        Relay::new(outbox.clone(), Arc::new(sink), Arc::new(Tokio::new()), Settings::default()).unwrap();
    let done = async { until("all is settled", async || waiting(outbox).await == 0).await };
    relay.run(done).await.unwrap();
}

fn assert_in_order(found: &[Read], keys: u32) {
    for key in 0..keys {
        let of_key = found.iter().filter(|one| one.key == format!("k{key}"));
        let numbers: Vec<u32> = of_key.map(|one| one.text.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

#[tokio::test]
async fn messages_land_in_the_order_of_their_keys_with_their_ids() {
    // G-41, G-43
    let Some(broker) = broker() else { return };
    for rest in ["", "?transactional=true"] {
        let topic = topic(&broker, "orders", &[]).await;
        let outbox = Arc::new(MemoryOutbox::new(2));
        let messages: Vec<Message> =
            (0..1000).map(|n| message(&topic, &format!("k{}", n % 23), n.to_string())).collect();
        outbox.write(messages.clone()).unwrap();
        relay_all(&outbox, sink(&broker, rest).await).await;
        let found = contents(&broker, &topic).await;
        assert_eq!(found.len(), 1000, "{rest}");
        assert_in_order(&found, 23);
        let sent = messages.iter().find(|message| message.payload == found[0].text.as_bytes()).unwrap();
        for header in ["semel-id", "ce_id"] {
            assert_eq!(found[0].headers[header], sent.id.to_string());
        }
        assert_eq!(found[0].headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn a_topic_that_does_not_exist_and_a_message_too_large_are_dead_letters_with_the_reason() {
    // G-44
    let Some(broker) = broker() else { return };
    for rest in ["", "?transactional=true"] {
        let small = topic(&broker, "small", &[("max.message.bytes", "5000")]).await;
        let outbox = Arc::new(MemoryOutbox::new(1));
        let missing = unique("missing");
        let huge = Message { payload: vec![b'x'; 2 << 20].into(), ..message(&small, "k3", "") };
        outbox
            .write([
                message(&small, "k0", "0"),
                message(&missing, "k1", "1"),
                message(&small, "k2", "9".repeat(20_000)),
                huge,
                message(&small, "k2", "5"),
                message(&small, "k4", "6"),
            ])
            .unwrap();
        relay_all(&outbox, sink(&broker, rest).await).await;
        let dead = dead(&outbox).await;
        assert_eq!(dead.len(), 3, "{rest} {dead:?}");
        assert!(
            dead.iter().any(|(topic, why)| *topic == missing && why.contains("does not exist")),
            "{dead:?}"
        );
        assert_eq!(
            dead.iter().filter(|(topic, why)| *topic == small && why.contains("bytes are more")).count(),
            2
        );
        let mut texts: Vec<String> =
            contents(&broker, &small).await.into_iter().map(|one| one.text).collect();
        texts.sort();
        assert_eq!(texts, ["0", "6"], "{rest}: what is behind a dead letter waits");
    }
}

#[tokio::test]
async fn what_follows_a_message_too_large_waits_for_it_though_nothing_of_its_partition_landed_before() {
    // G-41: a broker that knows nothing of a producer yet would take the second as its first, if it is on its way before
    // the client hears of the refusal. That is a race, so there is more than one.
    let Some(broker) = broker() else { return };
    for rest in ["", "", "", "", "", "?transactional=true"] {
        let small = topic(&broker, "first", &[("max.message.bytes", "5000")]).await;
        let outbox = Arc::new(MemoryOutbox::new(1));
        outbox.write([message(&small, "k0", "9".repeat(20_000)), message(&small, "k0", "1")]).unwrap();
        relay_all(&outbox, sink(&broker, rest).await).await;
        assert_eq!(dead(&outbox).await.len(), 1, "{rest}");
        assert_eq!(contents(&broker, &small).await.len(), 0, "{rest}");
    }
}

#[tokio::test]
async fn a_record_the_topic_cannot_take_is_a_dead_letter_and_the_others_land() {
    // G-44
    let Some(broker) = broker() else { return };
    for rest in ["", "?transactional=true"] {
        let compacted = topic(&broker, "compacted", &[("cleanup.policy", "compact")]).await;
        let outbox = Arc::new(MemoryOutbox::new(1));
        let keyless = Message { key: None, ..message(&compacted, "k0", "0") };
        outbox.write([message(&compacted, "k1", "1"), keyless, message(&compacted, "k2", "2")]).unwrap();
        relay_all(&outbox, sink(&broker, rest).await).await;
        let dead = dead(&outbox).await;
        assert_eq!(dead.len(), 1, "{rest} {dead:?}");
        let mut texts: Vec<String> =
            contents(&broker, &compacted).await.into_iter().map(|one| one.text).collect();
        texts.sort();
        assert_eq!(texts, ["1", "2"], "{rest}");
    }
}

#[tokio::test]
async fn a_takeover_knows_exactly_what_landed_and_the_zombie_is_fenced() {
    // G-42, G-43
    let Some(broker) = broker() else { return };
    let topic = topic(&broker, "takeover", &[]).await;
    let sink = sink(&broker, "?transactional=true").await;
    let outbox = Arc::new(MemoryOutbox::new(1));
    let messages: Vec<Message> = (0..20).map(|n| message(&topic, "k0", n.to_string())).collect();
    outbox.write(messages.clone()).unwrap();
    let holder = Nonce::random();
    let Taken::Yours(mut cursor) = outbox.take(Lane(0), holder, Duration::from_secs(60)).await.unwrap()
    else {
        panic!("it is free")
    };
    let first = cursor.next(10).await.unwrap();
    let stamp = Stamp::new(&outbox.facts(), cursor.term(), Format::Plain, "ce_", None);
    let batch: Vec<Parcel> = first.iter().map(|entry| stamp.parcel(entry)).collect();
    let position = cursor.position(10);
    let mut zombie = opened(&sink, &outbox.facts(), cursor.term().epoch).await.line;
    assert!(zombie.is_atomic());
    let receipts = zombie.publish(Batch { parcels: &batch, position: Some(&position) }).await;
    assert_eq!(receipts, vec![Receipt::Landed; 10]);
    // It is never saved: the process dies, or is paused.
    cursor.give_back().await.unwrap();

    relay_all(&outbox, sink_again(&broker).await).await;
    let texts: Vec<String> = contents(&broker, &topic).await.into_iter().map(|one| one.text).collect();
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(texts, expected, "each once");

    let late = zombie.publish(Batch { parcels: &batch, position: Some(&position) }).await;
    assert_eq!(late, vec![Receipt::Fenced; 10]);
    assert_eq!(contents(&broker, &topic).await.len(), 20);
}

/// As a relay does: again while the broker is not ready.
async fn opened(sink: &KafkaSink, facts: &Facts, epoch: u64) -> Opened {
    let mut opened = None;
    until("the line is open", async || {
        match sink.open(facts, term(epoch)).await {
            Ok(line) => opened = Some(line),
            Err(Trouble::Down(reason)) => eprintln!("{reason}"),
            Err(trouble) => panic!("{trouble}"),
        }
        opened.is_some()
    })
    .await;
    opened.unwrap()
}

async fn sink_again(broker: &str) -> KafkaSink {
    sink(broker, "?transactional=true").await
}

#[tokio::test]
async fn another_stores_open_transaction_does_not_hide_how_far_a_lane_came() {
    // G-42, G-43
    let Some(broker) = broker() else { return };
    let (topic, positions) = (
        topic(&broker, "shared", &[]).await,
        topic(&broker, "positions", &[("cleanup.policy", "compact")]).await,
    );
    let facts = facts();
    let sink = sink(&broker, &format!("?transactional=true&positions={positions}")).await;
    let mut line = opened(&sink, &facts, 1).await.line;
    let mut land = async |n: u8| {
        let batch = parcels(&sink, 1, &[message(&topic, "k0", n.to_string())]);
        let position = Position(vec![n].into());
        let landed = line.publish(Batch { parcels: &batch, position: Some(&position) }).await;
        assert_eq!(landed, [Receipt::Landed]);
    };
    land(1).await;
    // The relay of another store dies in the middle of its batch. The broker ends that after these two seconds.
    let other: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &broker)
        .set("transactional.id", unique("other"))
        .set("transaction.timeout.ms", "2000")
        .create()
        .unwrap();
    other.init_transactions(Duration::from_secs(60)).unwrap();
    other.begin_transaction().unwrap();
    other.send(BaseRecord::to(&positions).partition(0).key("another store.0").payload("x")).unwrap();
    other.flush(Duration::from_secs(60)).unwrap();
    land(2).await;
    assert_eq!(opened(&sink, &facts, 2).await.landed, Some(Position(vec![2].into())));
}

#[tokio::test]
async fn a_position_of_an_epoch_to_come_is_not_believed() {
    // G-44
    let Some(broker) = broker() else { return };
    let topic = topic(&broker, "restored", &[]).await;
    let sink = sink(&broker, "?transactional=true").await;
    let facts = facts();
    let position = Position(vec![1, 2, 3].into());
    let mut later = opened(&sink, &facts, 9).await.line;
    let batch = parcels(&sink, 9, &[message(&topic, "k0", "0")]);
    let landed = later.publish(Batch { parcels: &batch, position: Some(&position) }).await;
    assert_eq!(landed, [Receipt::Landed]);
    let known = |epoch: u64| {
        let (sink, facts) = (&sink, &facts);
        async move { opened(sink, facts, epoch).await.landed }
    };
    assert_eq!(known(10).await, Some(position));
    assert_eq!(known(5).await, None, "the database went back");
    assert_eq!(known(10).await, None, "and it is forgotten for good");
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_down_and_nonsense_is_unusable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connect = |rest: &str| {
        let address = Address::parse(&format!("kafka://127.0.0.1:{port}{rest}")).unwrap();
        async move { KafkaSink::connect(&address).await.map(drop).unwrap_err() }
    };
    let down = connect("").await;
    assert!(matches!(down, Trouble::Down(_)), "{down}");
    for rest in
        ["?transactional=maybe", "?acknowledgements=all", "?no.such.setting=1", "?security.protocol=ssl"]
    {
        let unusable = connect(rest).await;
        assert!(matches!(unusable, Trouble::Unusable(_)), "{rest}: {unusable}");
    }
}
