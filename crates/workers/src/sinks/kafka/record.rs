//! A message as Kafka's client takes it, and what its errors say of one.

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::util::IntoOpaque;

use crate::sinks::{Parcel, Receipt};

/// A message with what is to come back with its report.
pub(super) fn record<O: IntoOpaque>(parcel: &Parcel, opaque: O) -> BaseRecord<'_, str, [u8], O> {
    let mut headers = OwnedHeaders::new_with_capacity(parcel.headers.len() + 1);
    headers = headers.insert(Header { key: "content-type", value: Some(&parcel.content_type) });
    for (name, value) in parcel.headers.iter().filter(|(name, _)| *name != "content-type") {
        headers = headers.insert(Header { key: name, value: Some(value) });
    }
    let record =
        BaseRecord::with_opaque_to(parcel.topic.as_str(), opaque).payload(&parcel.body[..]).headers(headers);
    match &parcel.key {
        Some(key) => record.key(key.as_str()),
        None => record,
    }
}

/// Whether an answer to a request is the fault of one of its records.
pub(super) fn is_of_one_record(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidRecord | Code::InvalidMessage
    )
}

/// What an error says of one record. `certain`: it is about this one and no other.
pub(super) fn verdict(code: Code, parcel: &Parcel, certain: bool) -> Receipt {
    match code {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize if certain => Receipt::Refused(format!(
            "{} bytes are more than the topic or the client takes: {code}",
            parcel.body.len()
        )),
        Code::InvalidRecord | Code::InvalidMessage if certain => Receipt::Refused(code.to_string()),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::InvalidTopic => {
            Receipt::Refused(no_topic(parcel.topic.as_str()))
        }
        Code::TopicAuthorizationFailed => {
            Receipt::Failed { reason: format!("`{}`: {code}", parcel.topic), after: None }
        }
        // It only went with another.
        Code::GaplessGuarantee | Code::PurgeQueue | Code::InvalidDifferentRecord => Receipt::Unsent,
        _ => Receipt::Down(code.to_string()),
    }
}

pub(super) fn no_topic(topic: &str) -> String {
    format!("the topic `{topic}` does not exist: create it, then replay this message")
}
