//! Consumers of a JetStream stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use semel::consumer::{Consumer, Options, Source, Tally};
use semel::error::Kind;
use semel::inbox::{Applied, Apply, Aside, Batch, Fence, Retention};
use semel::runtime::Tokio;
use semel::sources::nats::{self, Nats};
use semel::store::Pending;
use semel::{Error, Nonce};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::world::{World, named, until};

crate::on_every_database!(
    messages_are_applied_once_however_often_they_are_delivered,
    a_commit_whose_answer_got_lost_is_asked_for_again,
    two_consumers_of_one_group_apply_each_message_once,
    a_message_without_an_id_is_a_dead_letter_and_nothing_is_lost,
    a_ledger_that_forgets_too_early_is_refused_at_start,
    a_slow_handler_keeps_its_messages,
    what_comes_again_after_the_lane_changed_hands_is_applied,
);

const DAY: Duration = Duration::from_secs(86_400);

/// A stream of this test's own.
pub(crate) struct Stream {
    pub(crate) url: String,
    pub(crate) name: String,
    context: jetstream::Context,
}

impl Stream {
    pub(crate) async fn new(max_age: Duration) -> Option<Self> {
        let url = named("nats", "SEMEL_TEST_NATS")?;
        let name = format!("T{}", Nonce::random());
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let subjects = vec![format!("{name}.>")];
        let config =
            jetstream::stream::Config { name: name.clone(), subjects, max_age, ..Default::default() };
        context.create_stream(config).await.unwrap();
        Some(Self { url, name, context })
    }

    /// One that another process made.
    pub(crate) async fn found(name: String) -> Self {
        let url = std::env::var("SEMEL_TEST_NATS").unwrap();
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        Self { url, name, context }
    }

    /// Publishes, acknowledged by the server. The stream's own deduplication is not asked.
    pub(crate) async fn publish(&self, id: Option<&str>, key: Option<&str>, payload: &str) {
        self.send(async_nats::HeaderMap::new(), id, key, payload).await;
    }

    /// As a relay does, under a holding of its lane.
    async fn relay(&self, epoch: u64, sequence: u64) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("semel-fence", Fence { lane: 3, epoch, sequence }.to_string());
        self.send(headers, Some(&sequence.to_string()), Some("k"), "x").await;
    }

    async fn send(
        &self,
        mut headers: async_nats::HeaderMap,
        id: Option<&str>,
        key: Option<&str>,
        payload: &str,
    ) {
        id.into_iter().for_each(|id| headers.insert("semel-id", id));
        key.into_iter().for_each(|key| headers.insert("semel-key", key));
        let subject = format!("{}.orders", self.name);
        let sent = self.context.publish_with_headers(subject, headers, payload.to_owned().into()).await;
        sent.unwrap().await.unwrap();
    }

    pub(crate) async fn source(&self, ack_wait: Duration) -> Nats {
        let client = async_nats::connect(&self.url).await.unwrap();
        let options =
            nats::Options { ack_wait, double_ack: true, ..nats::Options::new(&self.name, "durable") };
        Nats::open(client, options).await.unwrap()
    }

    /// How many messages wait for their first or another acknowledgement.
    pub(crate) async fn unacknowledged(&self) -> u64 {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        let Ok(mut consumer) = stream.get_consumer::<jetstream::consumer::pull::Config>("durable").await
        else {
            return u64::MAX;
        };
        let info = consumer.info().await.unwrap();
        info.num_pending + info.num_ack_pending as u64
    }

    pub(crate) async fn delete(&self) {
        self.context.delete_stream(&self.name).await.unwrap();
    }
}

pub(crate) fn options() -> Options {
    let retention = Retention { ledger: 3 * DAY, dead_letters: DAY, redelivery: None };
    Options { retention, pause: Duration::from_millis(20), ..Options::new("g") }
}

/// A consumer at work, until it is stopped.
pub(crate) struct Running {
    pub(crate) tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) async fn start(
        stream: &Stream,
        world: &World,
        apply: Arc<dyn Apply>,
        options: Options,
    ) -> Self {
        let source = stream.source(Duration::from_secs(30)).await;
        Self::with(source, world, apply, options)
    }

    pub(crate) fn with(
        source: impl Source + 'static,
        world: &World,
        apply: Arc<dyn Apply>,
        options: Options,
    ) -> Self {
        let runtime = Arc::new(Tokio::new());
        let consumer = Consumer::new(source, apply, world.inbox.clone(), runtime, options);
        let (tally, (stop, stopped)) = (consumer.tally(), oneshot::channel::<()>());
        let task = tokio::spawn(async move { consumer.run(async { drop(stopped.await) }).await });
        Self { tally, stop, task }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

async fn messages_are_applied_once_however_often_they_are_delivered(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
    for n in 0..30 {
        for _ in 0..2 {
            stream.publish(Some(&format!("m{n}")), None, "a").await;
        }
    }
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    consumer.stop().await;
    let mut effects = world.effects().await;
    assert_eq!(effects.len(), 30);
    effects.sort();
    effects.dedup();
    assert_eq!(effects.len(), 30);
    stream.delete().await;
}

/// Commits, and then says that nobody knows; every second time.
struct LosesAnswers {
    inner: Arc<dyn Apply>,
    calls: AtomicU32,
    lost: AtomicU32,
}

impl Apply for LosesAnswers {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            let applied = self.inner.apply(batch).await?;
            if self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                self.lost.fetch_add(1, Ordering::SeqCst);
                return Err(Error::new(Kind::Unreachable, "the answer got lost").maybe_applied());
            }
            Ok(applied)
        })
    }
}

async fn a_commit_whose_answer_got_lost_is_asked_for_again(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    let lossy = Arc::new(LosesAnswers {
        inner: world.apply.clone(),
        calls: AtomicU32::new(0),
        lost: AtomicU32::new(0),
    });
    let consumer =
        Running::start(&stream, &world, lossy.clone(), Options { batch_max: 3, ..options() }).await;
    for n in 0..9 {
        stream.publish(Some(&format!("m{n}")), None, "a").await;
    }
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    assert!(lossy.lost.load(Ordering::SeqCst) > 0);
    assert!(consumer.tally.duplicates.load(Ordering::SeqCst) > 0, "the ledger told");
    consumer.stop().await;
    assert_eq!(world.effects().await.len(), 9);
    stream.delete().await;
}

async fn two_consumers_of_one_group_apply_each_message_once(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    // Deadlines so short that messages are delivered to both.
    let source = async || stream.source(Duration::from_millis(300)).await;
    let start = async || {
        Running::with(source().await, &world, world.apply.clone(), Options { batch_max: 7, ..options() })
    };
    let (one, two) = (start().await, start().await);
    for n in 0..60 {
        stream.publish(Some(&format!("m{n}")), None, "a").await;
    }
    until("half is settled", async || stream.unacknowledged().await < 30).await;
    // One goes, another comes: the rest changes hands.
    one.stop().await;
    let three = start().await;
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    two.stop().await;
    three.stop().await;
    let mut effects = world.effects().await;
    effects.sort();
    assert_eq!(effects.len(), 60);
    effects.dedup();
    assert_eq!(effects.len(), 60);
    stream.delete().await;
}

async fn what_comes_again_after_the_lane_changed_hands_is_applied(world: World) {
    // G-42, G-45: a consumer was given messages of one relay, and died.
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.relay(1, 4).await;
    stream.relay(1, 5).await;
    let mut died = stream.source(Duration::from_secs(2)).await;
    assert_eq!(died.next(10, Duration::from_secs(60)).await.unwrap().len(), 2);
    drop(died);
    stream.relay(2, 6).await;
    let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
    until("the newer one is applied", async || world.effects().await == ["6"]).await;
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    // A relay that had lost its lane.
    stream.relay(1, 3).await;
    until("it is settled", async || stream.unacknowledged().await == 0).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["6", "4", "5"]);
    let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
    assert_eq!(letters.iter().map(|letter| letter.aside).collect::<Vec<_>>(), [Aside::Stale]);
    stream.delete().await;
}

async fn a_message_without_an_id_is_a_dead_letter_and_nothing_is_lost(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.publish(Some("1"), Some("k"), "first").await;
    stream.publish(None, Some("k"), "nameless").await;
    stream.publish(Some("2"), Some("k"), "second").await;
    stream.publish(Some("3"), None, "other").await;
    let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    assert_eq!(world.effects_of("k").await, ["1"], "its key waits");
    assert_eq!(world.effects_of("").await, ["3"], "others go on");
    let letters = world.inbox.letters("g", Some(Aside::Dead), 0, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].message.payload, "nameless");
    assert!(letters[0].reason.contains("no id"), "{}", letters[0].reason);

    use semel::inbox::{Id, Judged, Verdict};
    let judge = async |verdict| world.inbox.judge("g", letters[0].number, &verdict).await.unwrap();
    assert_eq!(judge(Verdict::Replay(None)).await, Judged::NoId);
    assert_eq!(judge(Verdict::Replay(Some(Id::parse("1b").unwrap()))).await, Judged::Made);
    until("the rest follows", async || world.effects_of("k").await.len() == 3).await;
    assert_eq!(world.effects_of("k").await, ["1", "1b", "2"]);
    consumer.stop().await;
    stream.delete().await;
}

async fn a_ledger_that_forgets_too_early_is_refused_at_start(world: World) {
    // G-46
    let Some(stream) = Stream::new(30 * DAY).await else { return };
    stream.publish(Some("1"), None, "a").await;
    let source = stream.source(Duration::from_secs(30)).await;
    let runtime = Arc::new(Tokio::new());
    let consumer = Consumer::new(source, world.apply.clone(), world.inbox.clone(), runtime, options());
    let tally = consumer.tally();
    let refused = tokio::time::timeout(Duration::from_secs(20), consumer.run(std::future::pending())).await;
    let refused = refused.expect("it does not start").unwrap_err();
    assert_eq!(refused.kind(), Kind::Misconfigured);
    assert!(refused.to_string().contains("keep the ledger longer"), "{refused}");
    assert_eq!(tally.settled(), 0);
    stream.delete().await;
}

/// Takes longer than the acknowledgement deadline, once.
struct Slow {
    inner: Arc<dyn Apply>,
    slept: AtomicBool,
}

impl Apply for Slow {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            if !self.slept.swap(true, Ordering::SeqCst) {
                // The time is what is tested: five deadlines pass.
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            self.inner.apply(batch).await
        })
    }
}

async fn a_slow_handler_keeps_its_messages(world: World) {
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.publish(Some("1"), None, "a").await;
    let slow = Arc::new(Slow { inner: world.apply.clone(), slept: AtomicBool::new(false) });
    let source = stream.source(Duration::from_secs(1)).await;
    let consumer = Running::with(source, &world, slow, options());
    until("it is settled", async || stream.unacknowledged().await == 0).await;
    let duplicates = consumer.tally.duplicates.load(Ordering::SeqCst);
    consumer.stop().await;
    assert_eq!((world.effects().await.len(), duplicates), (1, 0), "nobody else was given it");
    stream.delete().await;
}

#[test]
fn a_source_that_is_closed_gives_back_what_it_holds_at_once() {
    // G-45
    crate::world::runtime().block_on(async {
        let Some(stream) = Stream::new(DAY).await else { return };
        for id in ["m0", "m1", "m2"] {
            stream.publish(Some(id), None, "x").await;
        }
        // Longer than this test may take: only what is given back comes again.
        let mut first = stream.source(Duration::from_secs(3600)).await;
        let read = first.next(10, Duration::from_secs(5)).await.unwrap();
        assert_eq!(read.len(), 3);
        first.ack(&[read[0].receipt]).await.unwrap();
        first.close().await.unwrap();
        let mut second = stream.source(Duration::from_secs(3600)).await;
        let mut places = Vec::new();
        for _ in 0..60 {
            let again = second.next(10, Duration::from_secs(1)).await.unwrap();
            places.extend(again.into_iter().map(|delivery| delivery.message.place));
            if places.len() >= 2 {
                break;
            }
        }
        places.sort();
        assert_eq!(places, ["2", "3"]);
        stream.delete().await;
    });
}
