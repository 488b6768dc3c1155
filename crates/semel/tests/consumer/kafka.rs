//! Consumers of Kafka topics: offsets in the effect's transaction, and Kafka to Kafka.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, TopicPartitionList};
use semel::Nonce;
use semel::consumer::{Consumer, Options, Source as _, Tally};
use semel::inbox::{Horizon, Kept, Offset};
use semel::runtime::Tokio;
use semel::sources::kafka::rdkafka;
use semel::sources::kafka::{self, Kafka, Outcome, Output, Transform, transform};
use tokio::sync::oneshot;

use crate::nats::options;
use crate::world::{World, named, until};

crate::on_every_database!(
    messages_of_a_topic_are_applied_once_and_in_order,
    a_rebalance_neither_loses_nor_repeats,
    messages_compressed_in_any_way_are_read,
    a_member_whose_name_another_takes_ends_and_says_so,
    the_databases_offset_is_where_reading_goes_on,
    a_reader_that_begins_at_the_end_misses_nothing_after_a_restart,
    a_compacted_topic_delivers_again_for_ever,
    a_topic_that_was_made_anew_is_refused_until_its_group_reads_it_from_the_beginning,
    a_partition_that_lost_what_was_not_applied_is_refused_until_its_group_goes_on_behind_it,
    ends_of_transactions_that_are_deleted_are_no_messages_lost,
);

fn config(brokers: &str, name: &str, value: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set(name, value);
    config
}

/// Makes a topic, and says its name.
async fn made(brokers: &str, partitions: i32, policy: &str) -> String {
    let name = format!("t{}", Nonce::random());
    let admin: AdminClient<DefaultClientContext> = config(brokers, "client.id", "t").create().unwrap();
    let day = 86_400_000.to_string();
    let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
    let topic = topic.set("retention.ms", &day).set("cleanup.policy", policy);
    let made = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    assert!(made[0].is_ok(), "{made:?}");
    name
}

/// A new topic on a broker of a test's own.
pub(crate) async fn topic_at(brokers: &str, partitions: i32) -> String {
    made(brokers, partitions, "delete").await
}

/// A topic of this test's own.
struct Topic {
    brokers: String,
    name: String,
    producer: FutureProducer,
}

impl Topic {
    async fn new(partitions: i32) -> Option<Self> {
        Self::cleaned(partitions, "delete").await
    }

    async fn cleaned(partitions: i32, policy: &str) -> Option<Self> {
        let brokers = named("kafka", "SEMEL_TEST_KAFKA")?;
        let name = made(&brokers, partitions, policy).await;
        let producer = config(&brokers, "enable.idempotence", "true").create().unwrap();
        Some(Self { brokers, name, producer })
    }

    /// Deletes it, and makes another of the same name.
    async fn make_anew(&self) {
        let admin: AdminClient<DefaultClientContext> =
            config(&self.brokers, "client.id", "t").create().unwrap();
        admin.delete_topics(&[&self.name], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let topic = NewTopic::new(&self.name, 1, TopicReplication::Fixed(1)).set("retention.ms", "86400000");
        until("the topic is made", async || {
            // It may still be on its way out.
            admin.create_topics([&topic], &AdminOptions::new()).await.unwrap()[0].is_ok()
        })
        .await;
    }

    /// Deletes what lies before an offset, as retention does.
    async fn delete_before(&self, offset: i64) {
        let admin: AdminClient<DefaultClientContext> =
            config(&self.brokers, "client.id", "t").create().unwrap();
        let mut before = TopicPartitionList::new();
        before.add_partition_offset(&self.name, 0, rdkafka::Offset::Offset(offset)).unwrap();
        let deleted = admin.delete_records(&before, &AdminOptions::new()).await.unwrap();
        assert!(deleted.elements().iter().all(|one| one.error().is_ok()), "{deleted:?}");
    }

    async fn publish(&self, id: &str, key: &str, payload: &str) {
        let headers = OwnedHeaders::new().insert(Header { key: "semel-id", value: Some(id) });
        let record = FutureRecord::to(&self.name).key(key).payload(payload).headers(headers);
        self.producer.send(record, Duration::from_secs(60)).await.unwrap();
    }

    /// More than a reader reads ahead that reads little.
    async fn flood(&self) {
        let sent: Vec<_> = (0..6000)
            .map(|n| {
                let id = n.to_string();
                let headers = OwnedHeaders::new().insert(Header { key: "semel-id", value: Some(&id) });
                let payload = "x".repeat(1000);
                let record = FutureRecord::to(&self.name).key("k").payload(&payload).headers(headers);
                self.producer.send_result(record).map_err(|(error, _)| error).unwrap()
            })
            .collect();
        for landed in sent {
            landed.await.unwrap().unwrap();
        }
    }

    /// It reads ahead as little as it can, and nobody takes what it has read.
    async fn read_little(&self, world: &World) -> Kafka {
        let mut from = kafka::Options::new(&self.brokers, vec![self.name.clone()], &self.name);
        let little = [("queued.min.messages", "1"), ("fetch.message.max.bytes", "1000")];
        from.also.extend(little.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Kafka::open(world.inbox.clone(), from).await.unwrap()
    }

    async fn start(&self, world: &World) -> Running {
        self.start_at(world, kafka::Start::Beginning).await
    }

    async fn start_at(&self, world: &World, start: kafka::Start) -> Running {
        self.start_with(world, start, Vec::new()).await
    }

    /// Reads other topics too.
    async fn start_with(&self, world: &World, start: kafka::Start, mut topics: Vec<String>) -> Running {
        topics.push(self.name.clone());
        let mut from = kafka::Options::new(&self.brokers, topics, &self.name);
        from.start = start;
        from.session_timeout = Duration::from_secs(10);
        self.start_from(world, from).await
    }

    async fn start_from(&self, world: &World, from: kafka::Options) -> Running {
        let source = Kafka::open(world.inbox.clone(), from).await.unwrap();
        let (apply, inbox) = (world.apply.clone(), world.inbox.clone());
        // A group of its own: members of one Kafka group wait for each other, whatever they read.
        let options = Options { group: self.name.clone(), batch_max: 10, ..options() };
        let consumer = Consumer::new(source, apply, inbox, Arc::new(Tokio::new()), options);
        let (tally, (stop, stopped)) = (consumer.tally(), oneshot::channel::<()>());
        let task = tokio::spawn(async move { consumer.run(async { drop(stopped.await) }).await });
        Running { tally, stop, task }
    }
}

struct Running {
    tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), semel::Error>>,
}

impl Running {
    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

async fn messages_of_a_topic_are_applied_once_and_in_order(world: World) {
    // G-45, G-47
    let Some(topic) = Topic::new(2).await else { return };
    for n in 0..20 {
        topic.publish(&format!("a{n:02}"), "a", "x").await;
        topic.publish(&format!("b{n:02}"), "b", if n == 5 { "poison" } else { "x" }).await;
        topic.publish(&format!("a{n:02}"), "a", "x").await;
    }
    let consumer = topic.start(&world).await;
    until("all of one key", async || world.effects_of("a").await.len() == 20).await;
    until("all are settled", async || consumer.tally.settled() == 60).await;
    consumer.stop().await;
    let expected = |key: char, count: usize| (0..count).map(|n| format!("{key}{n:02}")).collect::<Vec<_>>();
    assert_eq!(world.effects_of("a").await, expected('a', 20));
    assert_eq!(world.effects_of("b").await, expected('b', 5), "its key is parked");
}

async fn a_rebalance_neither_loses_nor_repeats(world: World) {
    // G-47
    let Some(topic) = Topic::new(4).await else { return };
    let publish = async |from: usize, to: usize| {
        for n in from..to {
            topic.publish(&format!("m{n}"), &format!("k{}", n % 7), "x").await;
        }
    };
    publish(0, 40).await;
    let one = topic.start(&world).await;
    until("it has begun", async || one.tally.settled() >= 10).await;
    let two = topic.start(&world).await;
    // Something to read for whoever has the partitions, until both had some.
    let sent = std::sync::atomic::AtomicUsize::new(40);
    until("both work", async || {
        let n = sent.fetch_add(1, Ordering::SeqCst);
        publish(n, n + 1).await;
        two.tally.settled() > 0
    })
    .await;
    one.stop().await;
    let all = sent.load(Ordering::SeqCst) + 20;
    publish(all - 20, all).await;
    until("all are there", async || world.effects().await.len() >= all).await;
    two.stop().await;
    let mut effects = world.effects().await;
    assert_eq!(effects.len(), all);
    effects.sort();
    effects.dedup();
    assert_eq!(effects.len(), all);
}

async fn messages_compressed_in_any_way_are_read(world: World) {
    // G-45
    let Some(mut topic) = Topic::new(1).await else { return };
    let ways = ["none", "gzip", "snappy", "lz4", "zstd"];
    for way in ways {
        topic.producer = config(&topic.brokers, "compression.type", way).create().unwrap();
        topic.publish(way, "k", &"x".repeat(10_000)).await;
    }
    let consumer = topic.start(&world).await;
    until("all are read", async || world.effects().await.len() == ways.len()).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ways);
}

async fn a_member_whose_name_another_takes_ends_and_says_so(world: World) {
    // G-47
    let Some(topic) = Topic::new(1).await else { return };
    let named = || {
        let mut from = kafka::Options::new(&topic.brokers, vec![topic.name.clone()], &topic.name);
        from.also.push(("group.instance.id".into(), "one".into()));
        from
    };
    let first = topic.start_from(&world, named()).await;
    topic.publish("1", "k", "x").await;
    until("it reads", async || world.effects().await.len() == 1).await;
    let second = topic.start_from(&world, named()).await;
    let error =
        tokio::time::timeout(Duration::from_secs(60), first.task).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), semel::error::Kind::Closed, "{error}");
    assert!(error.to_string().contains("start it again"), "{error}");
    topic.publish("2", "k", "x").await;
    until("the other reads on", async || world.effects().await.len() == 2).await;
    second.stop().await;
}

async fn the_databases_offset_is_where_reading_goes_on(world: World) {
    // G-47
    let Some(topic) = Topic::new(1).await else { return };
    for n in 0..10 {
        topic.publish(&format!("m{n}"), "k", "x").await;
    }
    // As if the first four had been applied by somebody, without ledger rows.
    world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap();
    world.run("UPDATE semel_inbox_offset SET next_offset = 4").await;
    let consumer = topic.start(&world).await;
    until("the rest is there", async || world.effects().await.len() == 6).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["m4", "m5", "m6", "m7", "m8", "m9"]);
    assert_eq!(world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap().next, Some(10));
}

async fn a_reader_that_begins_at_the_end_misses_nothing_after_a_restart(world: World) {
    // G-47
    let Some(topic) = Topic::new(1).await else { return };
    for n in 0..3 {
        topic.publish(&format!("before{n}"), "k", "x").await;
    }
    let consumer = topic.start_at(&world, kafka::Start::End).await;
    let begun = "SELECT CAST(next_offset AS TEXT) FROM semel_inbox_offset WHERE next_offset IS NOT NULL";
    until("it has begun", async || world.texts(begun).await == ["3"]).await;
    consumer.stop().await;
    for n in 0..2 {
        topic.publish(&format!("after{n}"), "k", "x").await;
    }
    let consumer = topic.start_at(&world, kafka::Start::End).await;
    until("the rest is there", async || world.effects().await.len() == 2).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["after0", "after1"]);
}

async fn a_compacted_topic_delivers_again_for_ever(world: World) {
    // G-46
    let expected =
        [("delete", Horizon::Within(Duration::from_secs(86_400))), ("compact,delete", Horizon::Unbounded)];
    for (policy, horizon) in expected {
        let Some(topic) = Topic::cleaned(1, policy).await else { return };
        let from = kafka::Options::new(&topic.brokers, vec![topic.name.clone()], &topic.name);
        let mut source = Kafka::open(world.inbox.clone(), from).await.unwrap();
        assert_eq!(source.horizon().await.unwrap(), horizon, "{policy}");
    }
}

async fn a_topic_that_was_made_anew_is_refused_until_its_group_reads_it_from_the_beginning(world: World) {
    // G-47
    let Some(topic) = Topic::new(1).await else { return };
    for n in 0..5 {
        topic.publish(&format!("old{n}"), "k", "x").await;
    }
    let consumer = topic.start(&world).await;
    until("all are applied", async || world.effects().await.len() == 5).await;
    consumer.stop().await;
    topic.make_anew().await;
    for n in 0..2 {
        topic.publish(&format!("new{n}"), "k", "x").await;
    }
    for _ in 0..2 {
        // However often it is started.
        let ended = tokio::time::timeout(Duration::from_secs(120), topic.start(&world).await.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert_eq!(error.kind(), semel::error::Kind::WentBack, "{error}");
        let what =
            format!("semel inbox rewind --group {0} --topic {0} --partition 0 --to OFFSET", topic.name);
        assert!(error.to_string().contains(&what), "{error}");
    }
    let rewind =
        async |partition, to| world.inbox.rewind(&topic.name, &topic.name, partition, to).await.unwrap();
    assert_eq!(world.inbox.rewind("another", &topic.name, None, 0).await.unwrap(), 0);
    assert_eq!(rewind(Some(7), 0).await, 0, "it has no such partition");
    let before = world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap();
    assert_eq!((before.next, rewind(Some(0), 1).await), (Some(5), 1));
    let after = world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap();
    assert_eq!(after.next, Some(1));
    assert!(after.generation > before.generation + 1, "whoever read it until now commits nothing");
    assert_eq!(rewind(None, 0).await, 1);

    topic.publish("old0", "k", "x").await;
    let consumer = topic.start(&world).await;
    until("all are settled", async || consumer.tally.settled() == 3).await;
    consumer.stop().await;
    let effects = world.effects().await;
    assert_eq!(
        effects[5..],
        ["new0", "new1"],
        "nothing is skipped, and what was applied is not applied again"
    );
}

async fn a_partition_that_lost_what_was_not_applied_is_refused_until_its_group_goes_on_behind_it(
    world: World,
) {
    // G-44, G-47
    let Some(topic) = Topic::new(1).await else { return };
    for n in 0..3 {
        topic.publish(&format!("m{n}"), "k", "x").await;
    }
    // A group that is new has lost nothing by what went before it.
    topic.delete_before(1).await;
    let consumer = topic.start(&world).await;
    until("all are applied", async || world.effects().await.len() == 2).await;
    consumer.stop().await;
    for n in 3..6 {
        topic.publish(&format!("m{n}"), "k", "x").await;
    }
    // What was applied may go.
    topic.delete_before(3).await;
    let consumer = topic.start(&world).await;
    until("the rest is applied", async || world.effects().await.len() == 5).await;
    consumer.stop().await;
    for n in 6..10 {
        topic.publish(&format!("m{n}"), "k", "x").await;
    }
    topic.delete_before(8).await;
    for _ in 0..2 {
        // However often it is started.
        let ended = tokio::time::timeout(Duration::from_secs(120), topic.start(&world).await.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert_eq!(error.kind(), semel::error::Kind::Damaged, "{error}");
        let what = format!("offset 6 of partition 0 of the Kafka topic {}", topic.name);
        let rewind = format!("semel inbox rewind --group {0} --topic {0} --partition 0 --to 8`", topic.name);
        assert!(error.to_string().contains(&what) && error.to_string().contains(&rewind), "{error}");
    }
    assert_eq!(world.effects().await.len(), 5);
    assert_eq!(world.inbox.rewind(&topic.name, &topic.name, Some(0), 8).await.unwrap(), 1);
    let consumer = topic.start(&world).await;
    until("what is there is applied", async || world.effects().await.len() == 7).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["m1", "m2", "m3", "m4", "m5", "m8", "m9"]);
}

async fn ends_of_transactions_that_are_deleted_are_no_messages_lost(world: World) {
    // G-44, G-47
    let Some(topic) = Topic::new(1).await else { return };
    let mut with = config(&topic.brokers, "transactional.id", &topic.name);
    let transactional: FutureProducer = with.set("enable.idempotence", "true").create().unwrap();
    transactional.init_transactions(Duration::from_secs(60)).unwrap();
    let other =
        Topic { producer: transactional.clone(), brokers: topic.brokers.clone(), name: topic.name.clone() };
    let transact = async |ids: &[&str], commit: bool| {
        transactional.begin_transaction().unwrap();
        for id in ids {
            other.publish(id, "k", "x").await;
        }
        match commit {
            true => transactional.commit_transaction(Duration::from_secs(60)).unwrap(),
            false => transactional.abort_transaction(Duration::from_secs(60)).unwrap(),
        }
    };
    let kept = "SELECT CAST(next_offset AS TEXT) FROM semel_inbox_offset WHERE next_offset IS NOT NULL";
    let goes_on = async |at: &str| until(at, async || world.texts(kept).await == [at]).await;

    let consumer = topic.start(&world).await;
    goes_on("0").await;
    transact(&["never"], false).await;
    goes_on("2").await;
    transact(&["m0", "m1"], true).await;
    goes_on("5").await;
    consumer.stop().await;
    topic.delete_before(5).await;

    let consumer = topic.start(&world).await;
    transact(&["m2"], true).await;
    goes_on("7").await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["m0", "m1", "m2"]);

    // One message, and it looks the same from outside.
    topic.publish("lost", "k", "x").await;
    topic.delete_before(8).await;
    let ended = tokio::time::timeout(Duration::from_secs(120), topic.start(&world).await.task).await;
    let error = ended.expect("it ends by itself").unwrap().unwrap_err();
    assert_eq!(error.kind(), semel::error::Kind::Damaged, "{error}");
    assert!(error.to_string().contains("goes on at offset 7 of partition 0"), "{error}");
}

#[test]
fn a_group_that_began_at_the_beginning_and_applied_nothing_hears_of_what_is_gone() {
    // G-44, G-47
    crate::world::on_sqlite(async |world| {
        let Some(topic) = Topic::new(1).await else { return };
        for n in 0..3 {
            topic.publish(&format!("m{n}"), "k", "x").await;
        }
        let from = kafka::Options::new(&topic.brokers, vec![topic.name.clone()], &topic.name);
        let mut source = Kafka::open(world.inbox.clone(), from).await.unwrap();
        let read = source.next(10, Duration::from_secs(60)).await.unwrap();
        assert!(!read.is_empty(), "it has begun");
        drop(source);
        topic.delete_before(2).await;
        let ended = tokio::time::timeout(Duration::from_secs(60), topic.start(&world).await.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert!(error.to_string().contains("goes on at offset 0 of partition 0"), "{error}");
        assert_eq!(world.effects().await.len(), 0);
    });
}

#[test]
fn a_reader_that_is_overtaken_by_deletion_hears_of_it() {
    // G-44, G-47
    crate::world::on_sqlite(async |world| {
        let Some(topic) = Topic::new(1).await else { return };
        topic.flood().await;
        let mut source = topic.read_little(&world).await;
        let mut read = source.next(1, Duration::from_secs(60)).await.unwrap().len();
        topic.delete_before(5990).await;
        let error = loop {
            match source.next(100, Duration::from_secs(60)).await {
                Ok(more) if more.is_empty() && source.passed().is_empty() => {
                    panic!("it read {read}, and says nothing")
                }
                Ok(more) => read += more.len(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), semel::error::Kind::Damaged, "{error}");
        // All that it had read before is given out first.
        let place = format!("goes on at offset {read} of partition 0");
        assert!(read > 1 && error.to_string().contains(&place), "{read}: {error}");
    });
}

#[test]
fn what_somebody_else_applied_before_it_was_deleted_is_no_error_of_who_had_the_partition_before() {
    // G-44, G-47
    crate::world::on_sqlite(async |world| {
        let Some(topic) = Topic::new(1).await else { return };
        topic.flood().await;
        let mut source = topic.read_little(&world).await;
        let read = source.next(1, Duration::from_secs(60)).await.unwrap();
        assert_eq!(read.len(), 1, "it has begun");
        // Kafka has not told it.
        let generation = world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap().generation;
        let applied = Offset { topic: topic.name.clone(), partition: 0, generation, first: 0, next: 5990 };
        assert_eq!(world.inbox.set_aside(&topic.name, &[], &[applied]).await.unwrap(), Kept::Kept);
        topic.delete_before(5990).await;
        let (mut fenced, mut places) = (0, Vec::new());
        while places.last().is_none_or(|last| last != "0:5999") {
            let passed = source.passed();
            if !passed.is_empty() {
                let kept = world.inbox.set_aside(&topic.name, &[], &passed).await.unwrap();
                assert_eq!(kept, Kept::Fenced, "it is somebody else's");
                source.fenced(&passed).await.unwrap();
                fenced += 1;
            }
            let read = source.next(100, Duration::from_secs(60)).await.unwrap();
            assert!(!read.is_empty() || !source.passed().is_empty() || fenced > 0, "it says nothing");
            places.extend(read.into_iter().map(|delivery| delivery.message.place));
        }
        assert_eq!(fenced, 1);
        let expected: Vec<String> = (5990..6000).map(|offset| format!("0:{offset}")).collect();
        let (before, after) = places.split_at(places.len() - expected.len());
        assert_eq!(after, expected, "Kafka says it is its own again, and the database where it goes on");
        assert!(before.iter().all(|place| place != "0:5989"), "it was overtaken");
    });
}

#[test]
fn a_group_that_is_rewound_while_a_consumer_still_looks_is_not_refused_for_where_it_was() {
    // G-47
    crate::world::on_sqlite(async |world| {
        let Some(topic) = Topic::new(1).await else { return };
        for n in 0..5 {
            topic.publish(&format!("old{n}"), "k", "x").await;
        }
        let consumer = topic.start(&world).await;
        until("all are applied", async || world.effects().await.len() == 5).await;
        consumer.stop().await;
        topic.make_anew().await;
        for n in 0..2 {
            topic.publish(&format!("new{n}"), "k", "x").await;
        }
        let consumer = topic.start(&world).await;
        let taken = "SELECT CAST(generation AS TEXT) FROM semel_inbox_offset";
        until("it is taken", async || world.texts(taken).await == ["2"]).await;
        assert_eq!(world.inbox.rewind(&topic.name, &topic.name, None, 0).await.unwrap(), 1);
        until("what is there is applied", async || {
            assert!(!consumer.task.is_finished(), "it has ended");
            world.effects().await.len() == 7
        })
        .await;
        consumer.stop().await;
        assert_eq!(world.effects().await[5..], ["new0", "new1"]);
    });
}

#[test]
fn a_topic_that_is_made_anew_under_a_reader_ends_it_and_names_the_first_offset_that_is_there() {
    // G-47
    crate::world::on_sqlite(async |world| {
        let Some(topic) = Topic::new(1).await else { return };
        for n in 0..5 {
            topic.publish(&format!("old{n}"), "k", "x").await;
        }
        let consumer = topic.start(&world).await;
        until("all are applied", async || world.effects().await.len() == 5).await;
        topic.make_anew().await;
        for n in 0..2 {
            topic.publish(&format!("new{n}"), "k", "x").await;
        }
        // Retention has been at it, too.
        topic.delete_before(1).await;
        let ended = tokio::time::timeout(Duration::from_secs(180), consumer.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert_eq!(error.kind(), semel::error::Kind::WentBack, "{error}");
        assert!(error.to_string().contains("(its first is 1: everything there is)"), "{error}");
        assert_eq!(world.effects().await.len(), 5);

        let rewind = async |to| world.inbox.rewind(&topic.name, &topic.name, Some(0), to).await.unwrap();
        assert_eq!(rewind(0).await, 1);
        let ended = tokio::time::timeout(Duration::from_secs(60), topic.start(&world).await.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert_eq!(error.kind(), semel::error::Kind::Damaged, "before the first nothing is read: {error}");
        assert_eq!(rewind(1).await, 1);
        let consumer = topic.start(&world).await;
        until("what is there is applied", async || world.effects().await.len() == 6).await;
        consumer.stop().await;
        assert_eq!(world.effects().await[5..], ["new1"]);
    });
}

#[test]
fn a_partition_that_ends_early_holds_up_no_other() {
    // G-47
    crate::world::on_sqlite(async |world| {
        let (Some(topic), Some(other)) = (Topic::new(1).await, Topic::new(1).await) else { return };
        for n in 0..5 {
            topic.publish(&format!("old{n}"), "k", "x").await;
        }
        let consumer = topic.start(&world).await;
        until("all are applied", async || world.effects().await.len() == 5).await;
        consumer.stop().await;
        topic.make_anew().await;
        topic.publish("new0", "k", "x").await;
        let consumer = topic.start_with(&world, kafka::Start::Beginning, vec![other.name.clone()]).await;
        for n in 0..3 {
            other.publish(&format!("other{n}"), "k", "x").await;
            until("the other topic goes on", async || world.effects().await.len() == 6 + n).await;
            assert!(!consumer.task.is_finished());
        }
        let ended = tokio::time::timeout(Duration::from_secs(120), consumer.task).await;
        let error = ended.expect("it ends by itself").unwrap().unwrap_err();
        assert_eq!(error.kind(), semel::error::Kind::WentBack, "{error}");
        assert_eq!(world.effects().await.len(), 8);
        let assigned = world.inbox.assign(&topic.name, &topic.name, 0).await.unwrap();
        assert_eq!((assigned.generation, assigned.next), (3, Some(5)), "it was taken once by each");
    });
}

#[test]
fn a_partition_without_a_leader_holds_up_no_other_and_is_read_once_it_has_one() {
    // G-47
    crate::world::on_sqlite(async |world| {
        let cluster = rdkafka::mocking::MockCluster::new(1).unwrap();
        cluster.create_topic("t", 2, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        let producer: FutureProducer = config(&brokers, "client.id", "t").create().unwrap();
        for n in 0..4 {
            let id = n.to_string();
            let headers = OwnedHeaders::new().insert(Header { key: "semel-id", value: Some(&id) });
            let record = FutureRecord::to("t").partition(n % 2).key("k").payload("x").headers(headers);
            producer.send(record, Duration::from_secs(60)).await.unwrap();
        }
        // Somebody has been at the first message of each.
        for partition in 0..2 {
            let generation = world.inbox.assign("g", "t", partition).await.unwrap().generation;
            let offset = Offset { topic: "t".into(), partition, generation, first: 0, next: 1 };
            world.inbox.set_aside("g", &[], &[offset]).await.unwrap();
        }
        let from = kafka::Options::new(&brokers, vec!["t".into()], "g");
        let mut source = Kafka::open(world.inbox.clone(), from).await.unwrap();
        cluster.partition_leader("t", 0, None).unwrap();
        let places = async |source: &mut Kafka| {
            let read = source.next(10, Duration::from_secs(1)).await.unwrap();
            read.into_iter().map(|delivery| delivery.message.place).collect::<Vec<_>>()
        };
        let seen = tokio::sync::Mutex::new((&mut source, Vec::new()));
        let more = async |wanted: &[&str]| {
            let (source, seen) = &mut *seen.lock().await;
            seen.extend(places(source).await);
            seen[..] == *wanted
        };
        until("the other partition is read", async || more(&["1:1"]).await).await;
        for _ in 0..8 {
            assert!(more(&["1:1"]).await, "nothing of the one without a leader, and no error");
        }
        cluster.partition_leader("t", 0, Some(1)).unwrap();
        until("both are read", async || more(&["1:1", "0:1"]).await).await;
        let assigned = world.inbox.assign("g", "t", 0).await.unwrap();
        assert_eq!(assigned.generation, 3, "it was taken once");
    });
}

/// What a reader of committed messages sees, once there are so many and no more come.
pub(crate) fn committed(brokers: &str, topic: &str, wanted: usize) -> Vec<String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", Nonce::random().to_string());
    config.set("auto.offset.reset", "earliest").set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let (mut seen, mut quiet) = (Vec::new(), 0);
    for _ in 0..600 {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => seen.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap()),
            Some(Err(error)) => panic!("{error}"),
            None => quiet += 1,
        }
        if seen.len() >= wanted && quiet >= 3 {
            break;
        }
    }
    seen
}

#[test]
fn kafka_to_kafka_outputs_and_offsets_commit_together_and_a_zombie_is_fenced() {
    // G-47
    crate::world::runtime().block_on(async {
        let (Some(from), Some(to)) = (Topic::new(1).await, Topic::new(1).await) else { return };
        for n in 0..30 {
            from.publish(&n.to_string(), "k", &n.to_string()).await;
        }
        let options = Transform {
            brokers: from.brokers.clone(),
            group: from.name.clone(),
            topics: vec![from.name.clone()],
            transactional_id: format!("{}-0", from.name),
            batch_max: 10,
        };
        let output = |topic: String| {
            move |message: &semel::inbox::Incoming| {
                let payload = [&message.payload[..], b"!"].concat();
                Ok(vec![Output {
                    topic: topic.clone(),
                    key: message.key.clone(),
                    headers: Vec::new(),
                    payload,
                }])
            }
        };
        // The first instance stops between two of its messages until a second has taken its place.
        let (first_stop, second_stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (reached, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let first = {
            let (reached, go_on, mut seen) = (reached.clone(), go_on.clone(), 0);
            let work = output(to.name.clone());
            tokio::spawn(transform(options.clone(), first_stop.clone(), move |message| {
                seen += 1;
                if seen == 15 {
                    reached.store(true, Ordering::SeqCst);
                    while !go_on.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                work(message)
            }))
        };
        until("the first is in a transaction", async || reached.load(Ordering::SeqCst)).await;
        // Whoever takes the transactional id ends the transactions of whoever had it.
        let (brokers, id) = (options.brokers.clone(), options.transactional_id.clone());
        let taken = tokio::task::spawn_blocking(move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", brokers).set("transactional.id", id);
            let successor: BaseProducer = config.create().unwrap();
            successor.init_transactions(Duration::from_secs(60)).unwrap();
        });
        taken.await.unwrap();
        go_on.store(true, Ordering::SeqCst);
        assert_eq!(first.await.unwrap().unwrap(), Outcome::Fenced);
        let second = tokio::spawn(transform(options, second_stop.clone(), output(to.name.clone())));
        let (brokers, name) = (to.brokers.clone(), to.name.clone());
        let seen = tokio::task::spawn_blocking(move || committed(&brokers, &name, 30)).await.unwrap();
        second_stop.store(true, Ordering::SeqCst);
        assert!(matches!(second.await.unwrap().unwrap(), Outcome::Stopped { .. }));
        let expected: Vec<String> = (0..30).map(|n| format!("{n}!")).collect();
        assert_eq!(seen, expected, "each output once, in order");
    });
}
