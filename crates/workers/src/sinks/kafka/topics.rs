//! Topics that are known to be there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaRespErr;

use super::record::no_topic;
use crate::sinks::{Parcel, Receipt};

/// Longest wait for what a broker has to say.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often a broker is asked whether a topic is there by now.
const ASK: Duration = Duration::from_millis(50);

/// Topics of messages that are not among the `known`, each once.
pub(super) fn unknown<'a>(known: &BTreeSet<String>, parcels: &'a [Parcel]) -> BTreeSet<&'a str> {
    let mut unknown = BTreeSet::new();
    let mut last = None;
    for parcel in parcels {
        let topic = parcel.topic.as_str();
        if last.replace(topic) != Some(topic) && !known.contains(topic) {
            unknown.insert(topic);
        }
    }
    unknown
}

/// Refuses what goes to topics that do not exist.
pub(super) fn refuse(missing: &BTreeSet<&str>, parcels: &[Parcel], receipts: &mut [Receipt]) {
    if missing.is_empty() {
        return;
    }
    for (parcel, receipt) in parcels.iter().zip(receipts) {
        if missing.contains(parcel.topic.as_str()) {
            *receipt = Receipt::Refused(no_topic(&parcel.topic));
        }
    }
}

/// Whether there is a topic of this name. Blocks.
pub(super) fn exists<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<bool, String> {
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        let metadata = client.fetch_metadata(Some(topic), ANSWER_MAX);
        let metadata = metadata.map_err(|error| format!("Kafka does not answer: {error}"))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        match found.and_then(|found| found.error()) {
            None => return Ok(found.is_some_and(|found| !found.partitions().is_empty())),
            // It is being made.
            Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) if Instant::now() < deadline => {
                std::thread::sleep(ASK);
            }
            Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {
                return Err(format!("the topic `{topic}` has no leader"));
            }
            Some(_) => return Ok(false),
        }
    }
}
