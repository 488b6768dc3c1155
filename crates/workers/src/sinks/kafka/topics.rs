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

/// What is known of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    There,
    Missing,
    /// We are not let in, and somebody can change that.
    Denied(String),
}

/// Writes receipts for what goes to topics that cannot be used.
pub(super) fn refuse(unusable: &[(&str, Found)], parcels: &[Parcel], receipts: &mut [Receipt]) {
    if unusable.is_empty() {
        return;
    }
    for (parcel, receipt) in parcels.iter().zip(receipts) {
        match unusable.iter().find(|(topic, _)| *topic == parcel.topic.as_str()) {
            Some((_, Found::Denied(why))) => {
                *receipt = Receipt::Failed { reason: format!("`{}`: {why}", parcel.topic), after: None };
            }
            Some(_) => *receipt = Receipt::Refused(no_topic(parcel.topic.as_str())),
            None => {}
        }
    }
}

/// Whether there is a topic of this name. Blocks.
pub(super) fn find<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<Found, String> {
    use RDKafkaRespErr::*;
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        let metadata = client.fetch_metadata(Some(topic), ANSWER_MAX);
        let metadata = metadata.map_err(|error| format!("Kafka does not answer: {error}"))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        match found.and_then(|found| found.error()) {
            None if found.is_some_and(|found| !found.partitions().is_empty()) => return Ok(Found::There),
            None | Some(RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART | RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION) => {
                return Ok(Found::Missing);
            }
            Some(RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) => {
                return Ok(Found::Denied("Kafka does not let us use the topic".into()));
            }
            // It is being made, or moves.
            Some(_) if Instant::now() < deadline => std::thread::sleep(ASK),
            Some(RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {
                return Err(format!("the topic `{topic}` has no leader"));
            }
            Some(other) => return Err(format!("Kafka says of the topic `{topic}`: {other:?}")),
        }
    }
}
