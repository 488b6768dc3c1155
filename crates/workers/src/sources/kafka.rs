//! Messages from Kafka topics, with the position in the database.
//!
//! Offsets are committed in the effect's transaction and never to Kafka: on assignment a partition is
//! *taken* in the database, which gives it a new generation and says where to go on (G-47). Whoever read it
//! before can commit nothing any more, however late it notices. Kafka's group protocol only says who should
//! read what; the database says who may.
//!
//! librdkafka is polled in a thread of its own, and rebalances (cooperative) happen there. `read_committed`:
//! what a producer aborted is not seen.

mod ahead;
mod assigned;
mod reader;
mod reading;
mod transform;
mod unchecked;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Horizon, Offset};
use semel_core::store::Pending;
use semel_core::{Inbox, mutant};
use tokio::sync::mpsc;

/// For tests that write to topics.
#[doc(hidden)]
pub use rdkafka;
pub use transform::{Outcome, Output, Transform, transform};

use crate::consumer::{Delivery, Receipt, Source};
use ahead::Ahead;
use assigned::Assigned;
use reader::Command;

/// How long one answer of a broker is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Messages read ahead.
const AHEAD_MAX: usize = 2000;

/// Where to start in a partition of which nothing was ever applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest message.
    Beginning,
    /// With the next one to be written when a member of the group first hears of the partition. In one that is added to the
    /// topic later, what was written before that is not read.
    End,
}

/// Where to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// `HOST:PORT`, separated by commas.
    pub brokers: String,
    /// The topics.
    pub topics: Vec<String>,
    /// The consumer group, in Kafka and in the ledger.
    pub group: String,
    /// Where to start.
    pub start: Start,
    /// How long Kafka waits for a sign of life before it gives the partitions to others.
    pub session_timeout: Duration,
    /// More settings of librdkafka. Those that correctness depends on are set after these.
    pub also: Vec<(String, String)>,
}

impl Options {
    /// The defaults.
    pub fn new(brokers: impl Into<String>, topics: Vec<String>, group: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            topics,
            group: group.into(),
            start: Start::Beginning,
            session_timeout: Duration::from_secs(45),
            also: Vec::new(),
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in &self.also {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.group)
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            // What is not where it was is looked into; see `Thread::doubt`. To go on elsewhere would pass over messages.
            .set(
                "auto.offset.reset",
                if mutant::on("kafka-source-reads-on-elsewhere") { "earliest" } else { "error" },
            );
        config
    }
}

/// Topics, read by one member of a group.
pub struct Kafka {
    options: Options,
    assigned: Arc<Assigned>,
    ahead: Ahead,
    commands: std::sync::mpsc::Sender<Command>,
}

impl Kafka {
    /// Joins the group. Refuses, with a sentence, a broker that does not answer and topics that are not there.
    ///
    /// # Cancellation
    /// Safe. Dropping it leaves the group.
    pub async fn open(inbox: Arc<dyn Inbox>, options: Options) -> Result<Self, Error> {
        let (sender, deliveries) = mpsc::channel(AHEAD_MAX);
        let (commands, orders) = std::sync::mpsc::channel();
        let assigned = Arc::new(Assigned::new(inbox, &options));
        reader::start(&options, assigned.clone(), sender, orders).await?;
        Ok(Self { options, assigned, ahead: Ahead::new(deliveries), commands })
    }

    async fn read(&mut self, limit: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        let assigned = &self.assigned;
        let read = self.ahead.read(limit, wait, |place| assigned.is_ours(place)).await?;
        // What was read under an assignment that ended is somebody else's, or comes again.
        let current = |delivery: &Delivery| self.assigned.is_current(delivery.position.as_ref());
        Ok(read.into_iter().filter(current).collect())
    }

    async fn kept(&self) -> Result<Horizon, Error> {
        let failed = |error: rdkafka::error::KafkaError| told("Kafka did not describe a topic", &error);
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.options.brokers).create().map_err(failed)?;
        let topics: Vec<_> =
            self.options.topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(ANSWER_MAX));
        let mut longest = Duration::ZERO;
        for found in admin.describe_configs(topics.iter(), &options).await.map_err(failed)? {
            let found = found.map_err(|code| failed(rdkafka::error::KafkaError::AdminOp(code)))?;
            let policy = found.get("cleanup.policy").and_then(|entry| entry.value.as_deref());
            if policy.is_none_or(|policy| policy.contains("compact")) {
                // The last message of a key is kept for ever.
                return Ok(Horizon::Unbounded);
            }
            let kept = found.get("retention.ms").and_then(|entry| entry.value.as_ref()?.parse::<i64>().ok());
            match kept.map(u64::try_from) {
                Some(Ok(millis)) => longest = longest.max(Duration::from_millis(millis)),
                // Without a limit, or not told.
                Some(Err(_)) | None => return Ok(Horizon::Unbounded),
            }
        }
        Ok(Horizon::Within(longest))
    }
}

impl Source for Kafka {
    fn horizon(&mut self) -> Pending<'_, Horizon> {
        Box::pin(self.kept())
    }

    fn next(&mut self, limit: usize, wait: Duration) -> Pending<'_, Vec<Delivery>> {
        Box::pin(self.read(limit, wait))
    }

    fn passed(&self) -> Vec<Offset> {
        self.ahead.passed().into_iter().filter(|offset| self.assigned.is_ours(offset)).cloned().collect()
    }

    /// Kafka has no deadline per message; the thread that polls keeps the membership alive.
    fn extend_every(&self) -> Option<Duration> {
        None
    }

    fn extend<'a>(&'a mut self, _receipts: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Nothing to say: the position was committed with the effect.
    fn ack<'a>(&'a mut self, _receipts: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Nothing to say: the position was not moved, and whoever reads next begins there.
    fn nack<'a>(&'a mut self, _receipts: &'a [Receipt], _delay: Duration) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fenced<'a>(&'a mut self, offsets: &'a [Offset]) -> Pending<'a, ()> {
        Box::pin(async move {
            for offset in offsets {
                let lost = (offset.topic.clone(), offset.partition, offset.generation);
                self.assigned.forget(&lost);
                let _ = self.commands.send(Command::TakeAgain(lost));
            }
            self.ahead.retain(|delivery| self.assigned.is_current(delivery.position.as_ref()));
            Ok(())
        })
    }
}

fn told(what: &str, error: &rdkafka::error::KafkaError) -> Error {
    let words = crate::kafka::words(error);
    let (kind, advice) = match error {
        rdkafka::error::KafkaError::ClientConfig(..) => (Kind::Misconfigured, ""),
        // Said once. The client reads nothing any more.
        _ if is_fatal(error) => (
            Kind::Closed,
            "; this member is out for good (another with its group.instance.id?), start it again",
        ),
        _ if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NotImplemented) => {
            (Kind::Misconfigured, "; a message may be compressed in a way that this build does not read")
        }
        _ => (Kind::Unreachable, ""),
    };
    Error::new(kind, format!("{what}: {words}{advice}")).because(words)
}

/// Whether the client has ended by it.
fn is_fatal(error: &rdkafka::error::KafkaError) -> bool {
    let is_fatal = matches!(error, rdkafka::error::KafkaError::MessageConsumptionFatal(_));
    is_fatal && !mutant::on("kafka-source-fatal-is-tried-again")
}
