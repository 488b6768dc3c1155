//! Kafka: a message has landed when all in-sync replicas have it (`acks=all`), written by an idempotent
//! producer that ends rather than leave a gap, so that nothing of a partition overtakes. All lanes share it, so that
//! what they have for a partition travels together.
//!
//! With `transactional=true` each lane has a producer of its own, and each batch is one transaction, together with a record of how far the lane has
//! come. Opening a lane fences whoever published it before and reads that record, so a takeover knows
//! exactly what landed. Readers must use `read_committed`.
//!
//! librdkafka is built without TLS: encrypt the way there by other means, or in a private network.

mod flight;
mod positions;
mod record;
mod shared;
mod topics;
mod trunk;
mod worker;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};
use semel_core::outbox::{Facts, Term};
use tokio::sync::oneshot;

use super::{About, Address, Answer, Batch, Dedup, Line, Opened, Receipt, Sink, Trouble};
use crate::kafka::words;
use positions::Positions;
use trunk::{Trunk, TrunkLine};
use worker::{Hand, Work};

/// Longest wait for a broker when a sink is opened.
const REACH_MAX: Duration = Duration::from_secs(10);
/// The topic in which transactional lanes keep how far they came.
const POSITIONS: &str = "semel-relay";

/// What came of each record, and what the client complained about.
#[derive(Default)]
pub(super) struct Reports {
    delivered: Mutex<Vec<(usize, Result<(), RDKafkaErrorCode>)>>,
    complaint: Mutex<Option<(RDKafkaErrorCode, String)>>,
}

impl Reports {
    fn take(&self) -> Vec<(usize, Result<(), RDKafkaErrorCode>)> {
        std::mem::take(&mut self.delivered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why credentials were refused, if they were.
    fn denied(&self) -> Option<String> {
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        complaint.filter(|(code, _)| is_denial(*code)).map(|(_, reason)| reason)
    }
}

fn is_denial(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{Authentication, SaslAuthenticationFailed, UnsupportedSASLMechanism};
    matches!(code, Authentication | SaslAuthenticationFailed | UnsupportedSASLMechanism)
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "semel::relay", ?level, facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "semel::relay", %error, reason, "kafka");
        if let Some(code) = error.rdkafka_error_code() {
            let mut complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
            // That no broker is left follows from that we are not let in, and says less.
            if complaint.as_ref().is_none_or(|(before, _)| !is_denial(*before)) {
                *complaint = Some((code, reason.to_owned()));
            }
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let told = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner).push((index, told));
    }
}

/// A Kafka cluster.
pub struct KafkaSink {
    config: ClientConfig,
    way: Way,
}

/// How lanes publish.
enum Way {
    /// Through one producer.
    Shared(Arc<Trunk>),
    /// Each through a producer of its own, in transactions.
    Transactions {
        /// The topic of positions.
        positions: String,
        /// One record per request, since a broker refused a batch and did not say which record.
        single: Arc<AtomicBool>,
    },
}

impl KafkaSink {
    /// `kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][?…]`. Settings: `transactional` (`true`), `positions`
    /// (another topic for them), and every setting of librdkafka that has a dot in its name.
    pub async fn connect(address: &Address) -> Result<Self, Trouble> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &address.hosts).set("client.id", "semel-relay");
        if let Some((user, password)) = &address.user {
            config
                .set("security.protocol", "sasl_plaintext")
                .set("sasl.mechanisms", "PLAIN")
                .set("sasl.username", user)
                .set("sasl.password", password.as_deref().unwrap_or_default());
        }
        for (name, value) in address.query.iter().filter(|(name, _)| name.contains('.')) {
            config.set(name, value);
        }
        let plain: Vec<&str> = address.query.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(unknown) =
            plain.iter().find(|name| !name.contains('.') && !["transactional", "positions"].contains(name))
        {
            let text =
                format!("`kafka:` takes transactional, positions and librdkafka's settings, not `{unknown}`");
            return Err(Trouble::Unusable(text));
        }
        let transactional = match address.setting("transactional").unwrap_or("false") {
            "true" => true,
            "false" => false,
            other => return Err(Trouble::Unusable(format!("transactional is true or false, not `{other}`"))),
        };
        let positions = address.setting("positions").unwrap_or(POSITIONS).to_owned();
        let way = match transactional {
            true => Way::Transactions { positions, single: Arc::default() },
            false => Way::Shared(Arc::new(Trunk::new(config.clone()))),
        };
        let reached = config.clone();
        apart(move || reach(&reached)).await?;
        Ok(Self { config, way })
    }
}

/// Makes sure that there is a broker, and that it lets us in.
fn reach(config: &ClientConfig) -> Result<(), Trouble> {
    let producer: BaseProducer<Reports> =
        config.create_with_context(Reports::default()).map_err(|error| Trouble::Unusable(words(&error)))?;
    let found = producer.client().fetch_metadata(None, REACH_MAX);
    // Errors come in through the queue that polling empties.
    producer.poll(Duration::ZERO);
    match (found, producer.context().denied()) {
        (Ok(_), _) => Ok(()),
        (Err(_), Some(denied)) => Err(Trouble::Unusable(format!("Kafka does not let us in: {denied}"))),
        (Err(error), None) => Err(Trouble::Down(format!("Kafka cannot be reached: {error}"))),
    }
}

/// Runs what blocks on a thread of its own.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let (done, answer) = oneshot::channel();
    std::thread::spawn(move || drop(done.send(work())));
    answer.await.unwrap_or_else(|_| Err(Trouble::Down("the Kafka client ended by accident".into())))
}

impl Sink for KafkaSink {
    fn about(&self) -> About {
        let dedup = match self.way {
            Way::Transactions { .. } => Dedup::Exact,
            Way::Shared(_) => Dedup::Receiver,
        };
        About { name: "kafka", dedup, attribute_prefix: "ce_" }
    }

    fn open(&self, outbox: &Facts, term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        match &self.way {
            Way::Shared(trunk) => {
                let trunk = trunk.clone();
                Box::pin(
                    async move { Ok(Opened { line: Box::new(TrunkLine::open(trunk).await?), landed: None }) },
                )
            }
            Way::Transactions { positions, single } => {
                let positions = Positions::new(&self.config, positions, outbox, term);
                let (config, single) = (self.config.clone(), single.clone());
                Box::pin(async move {
                    let (landed, hand) = apart(move || Work::begin(config, positions, single)).await?;
                    Ok(Opened { line: Box::new(hand), landed })
                })
            }
        }
    }
}

impl Line for Hand {
    fn is_atomic(&self) -> bool {
        true
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        let count = batch.parcels.len();
        let Some(position) = batch.position.cloned() else {
            let reason = "a transaction needs the lane's position".to_owned();
            return Box::pin(std::future::ready(vec![Receipt::Down(reason); count]));
        };
        let answer = self.order(batch.parcels.to_vec(), position);
        Box::pin(async move {
            let gone = || vec![Receipt::Down("the Kafka client ended by accident".into()); count];
            answer.await.unwrap_or_else(|_| gone())
        })
    }
}
