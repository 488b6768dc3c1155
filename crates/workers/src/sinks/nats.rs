//! NATS JetStream: a message has landed when its stream acknowledged it. `Nats-Msg-Id` is the id, by which
//! the stream drops copies for as long as its duplicate window is.
//!
//! With `fence=STREAM` the lane is the only writer of that stream: each message says which sequence it
//! expects to follow, so the server refuses whatever a paused relay still sends after another took over.
//! `{lane}` in the prefix and in the stream's name stands for the lane's number.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{
    ContextBuilder, GetStreamByNameErrorKind, GetStreamErrorKind, PublishAckFuture, PublishError,
    PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Error as ServerSaid, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, HeaderName};
use futures_util::TryStreamExt;
use semel_core::mutant;
use semel_core::outbox::{Facts, Lane, Term};

use super::{About, Address, Answer, Batch, Dedup, Line, Opened, Parcel, Receipt, Sink, Trouble, in_order};

/// Messages on their way at once, per lane.
const WIDTH: usize = 512;
/// Longest wait for an acknowledgement.
const ACK_MAX: Duration = Duration::from_secs(5);
/// Messages on their way at once, over all lanes.
const ACKS_MAX: usize = 64 * WIDTH;
/// Headers that begin so are orders to the server.
const SERVERS_OWN: &str = "nats-";
/// What stands for the lane's number.
const LANE: &str = "{lane}";

/// A server, or a cluster of them, with JetStream.
#[derive(Clone)]
pub struct NatsSink {
    client: Client,
    context: Context,
    prefix: String,
    fence: Option<String>,
    dedup: Dedup,
    /// What the server complained about last, out of turn.
    complaint: Arc<Mutex<Option<String>>>,
}

impl NatsSink {
    /// `nats://[USER:PASSWORD@]HOST:PORT[,HOST:PORT][/PREFIX][?…]`, or `tls://…`. Settings: `creds` (a file),
    /// `ca` (a file), `stream` (whose duplicate window counts), `fence` (the stream of a lane).
    pub async fn connect(address: &Address) -> Result<Self, Trouble> {
        address.only(&["creds", "ca", "stream", "fence"])?;
        let complaint: Arc<Mutex<Option<String>>> = Arc::default();
        let heard = complaint.clone();
        let mut options = ConnectOptions::new()
            .name("semel relay")
            .connection_timeout(ACK_MAX)
            .request_timeout(Some(ACK_MAX))
            .event_callback(move |event| {
                let heard = heard.clone();
                async move {
                    tracing::info!(target: "semel::relay", %event, "nats");
                    if let Event::ServerError(error) = event {
                        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                    }
                }
            });
        match &address.user {
            Some((user, Some(password))) => {
                options = options.user_and_password(user.clone(), password.clone())
            }
            Some((token, None)) => options = options.token(token.clone()),
            None => {}
        }
        if let Some(path) = address.setting("creds") {
            let creds = std::fs::read_to_string(path)
                .map_err(|error| Trouble::Unusable(format!("the credentials cannot be read: {error}")))?;
            let used = options.credentials(&creds);
            options =
                used.map_err(|error| Trouble::Unusable(format!("the credentials make no sense: {error}")))?;
        }
        if address.scheme == "tls" {
            // The client takes the process's provider; a second call finds it there.
            let _ = rustls::crypto::ring::default_provider().install_default();
            options = options.require_tls(true);
        }
        if let Some(path) = address.setting("ca") {
            options = options.add_root_certificates(path.into());
        }
        let servers: Vec<String> =
            address.hosts.split(',').map(|host| format!("{}://{host}", address.scheme)).collect();
        let client = options.connect(servers).await.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::ServerParse
            | ConnectErrorKind::Tls => Trouble::Unusable(format!("NATS does not let us in: {error}")),
            _ => Trouble::Down(format!("NATS cannot be reached: {error}")),
        })?;
        let context = ContextBuilder::new()
            .timeout(ACK_MAX)
            .ack_timeout(ACK_MAX)
            .max_ack_inflight(ACKS_MAX)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let prefix = address.path.trim_matches('/').trim_matches('.').to_owned();
        let fence = address.setting("fence").map(str::to_owned);
        let mut sink = Self { client, context, prefix, fence, dedup: Dedup::Receiver, complaint };
        sink.dedup = sink.window(address.setting("stream")).await?;
        Ok(sink)
    }

    /// The shortest duplicate window of the streams that may take our subjects.
    async fn window(&self, only: Option<&str>) -> Result<Dedup, Trouble> {
        let unanswered = |error: String| Trouble::Down(format!("JetStream does not answer: {error}"));
        let mut streams = self.context.streams();
        let mut shortest: Option<Duration> = None;
        while let Some(info) = streams.try_next().await.map_err(|error| unanswered(error.to_string()))? {
            let config = info.config;
            let ours = match only {
                Some(name) => config.name == name,
                None => config.subjects.iter().any(|subject| may_meet(subject, &self.prefix)),
            };
            // Zero means the server's default, which it fills in; so a zero here is none.
            if ours && !config.duplicate_window.is_zero() {
                shortest = Some(
                    shortest.map_or(config.duplicate_window, |so_far| so_far.min(config.duplicate_window)),
                );
            }
        }
        Ok(shortest.map_or(Dedup::Receiver, Dedup::Window))
    }

    fn line(&self, lane: Lane) -> NatsLine {
        let number = lane.0.to_string();
        let prefix = match self.prefix.is_empty() {
            true => String::new(),
            false => format!("{}.", self.prefix.replace(LANE, &number)),
        };
        NatsLine { sink: self.clone(), prefix, fence: None }
    }
}

impl Sink for NatsSink {
    fn about(&self) -> About {
        About { name: "nats", dedup: self.dedup, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        Box::pin(async move {
            let mut line = self.line(term.lane);
            if let Some(stream) = &self.fence {
                let stream = stream.replace(LANE, &term.lane.0.to_string());
                line.fence = Some(Fence { last: self.last_sequence(&stream).await?, stream, careful: true });
            }
            Ok(Opened { line: Box::new(line), landed: None })
        })
    }
}

impl NatsSink {
    async fn last_sequence(&self, stream: &str) -> Result<u64, Trouble> {
        let missing = |why: String| Trouble::Unusable(format!("the stream `{stream}` of the fence: {why}"));
        match self.context.get_stream(stream).await {
            Ok(stream) => Ok(stream.cached_info().state.last_sequence),
            Err(error) => Err(match error.kind() {
                GetStreamErrorKind::JetStream(said) if said.code() == 404 => missing(said.to_string()),
                GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                    missing(error.to_string())
                }
                _ => Trouble::Down(format!("JetStream does not answer: {error}")),
            }),
        }
    }

    /// What an error says of one message.
    async fn trouble(&self, error: PublishError, subject: &str) -> Receipt {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Receipt::Refused(error.to_string()),
            // Nobody answered: no stream, or no JetStream.
            PublishErrorKind::StreamNotFound => match self.context.stream_by_subject(subject).await {
                Ok(stream) => failed(format!("the stream `{stream}` of `{subject}` does not answer now")),
                Err(found) if found.kind() == GetStreamByNameErrorKind::NotFound => Receipt::Refused(
                    format!("no stream takes the subject `{subject}`: create one, then replay this message"),
                ),
                Err(other) => Receipt::Down(format!("JetStream does not answer: {other}")),
            },
            PublishErrorKind::WrongLastSequence => {
                Receipt::Down(format!("somebody else wrote to the stream of this lane: {error}"))
            }
            PublishErrorKind::Other => match std::error::Error::source(&error).and_then(|e| e.downcast_ref())
            {
                Some(said) => refusal(said),
                None => Receipt::Down(error.to_string()),
            },
            _ => self.unanswered(&error, subject),
        }
    }

    /// A server that forbids a subject says so out of turn and leaves the message unanswered.
    fn unanswered(&self, error: &PublishError, subject: &str) -> Receipt {
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match complaint {
            Some(complaint) if complaint.contains("ermissions") && complaint.contains(subject) => {
                failed(complaint)
            }
            _ => Receipt::Down(error.to_string()),
        }
    }
}

fn failed(reason: String) -> Receipt {
    Receipt::Failed { reason, after: None }
}

fn refusal(said: &ServerSaid) -> Receipt {
    match (said.error_code(), said.code()) {
        // It says nothing of this message: later there is room for it, now for none.
        (ErrorCode::ACCOUNT_RESOURCES_EXCEEDED, _) | (_, 429) if !mutant::on("nats-full-account-refused") => {
            Receipt::Down(said.to_string())
        }
        (ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, _) | (_, 400..=499) => Receipt::Refused(said.to_string()),
        _ => failed(said.to_string()),
    }
}

/// The sequence of a stream that this lane alone writes.
struct Fence {
    stream: String,
    last: u64,
    /// What comes next may be copies of what landed before, and those take no sequence.
    careful: bool,
}

struct NatsLine {
    sink: NatsSink,
    prefix: String,
    fence: Option<Fence>,
}

impl Line for NatsLine {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(async move {
            // What is handed to the client now would leave whenever the server is back: too late to be ours.
            if self.sink.client.connection_state() != State::Connected {
                return vec![Receipt::Down("NATS is not connected".into()); batch.parcels.len()];
            }
            match &mut self.fence {
                Some(fence) => fenced(&self.sink, &self.prefix, fence, batch.parcels).await,
                None => {
                    let (sink, prefix) = (&self.sink, self.prefix.as_str());
                    in_order(batch.parcels, WIDTH, move |parcel| plain(sink, prefix, parcel)).await
                }
            }
        })
    }
}

async fn plain(sink: &NatsSink, prefix: &str, parcel: &Parcel) -> Receipt {
    let subject = format!("{prefix}{}", parcel.topic);
    let message = match message(parcel) {
        Ok(message) => message,
        Err(why) => return Receipt::Refused(why),
    };
    let sent = match sink.context.send_publish(subject.clone(), message).await {
        Ok(acknowledgement) => acknowledgement.await,
        Err(error) => Err(error),
    };
    match sent {
        Ok(_) => Receipt::Landed,
        Err(error) => sink.trouble(error, &subject).await,
    }
}

/// One after the other without waiting: whatever follows a message that did not land expects a sequence
/// that never comes, and the server refuses it. Only what was not even sent must be watched here. After
/// opening, each message is waited for until one was no copy.
async fn fenced(sink: &NatsSink, prefix: &str, fence: &mut Fence, parcels: &[Parcel]) -> Vec<Receipt> {
    let mut flying = Vec::with_capacity(parcels.len());
    let mut closed: HashSet<&str> = HashSet::new();
    let mut expected = fence.last;
    for parcel in parcels {
        let subject = format!("{prefix}{}", parcel.topic);
        let sent = match message(parcel) {
            _ if parcel.key.as_deref().is_some_and(|key| closed.contains(key)) => Err(Receipt::Unsent),
            Err(why) => Err(Receipt::Refused(why)),
            Ok(message) => {
                let message = message.expected_stream(&fence.stream).expected_last_sequence(expected);
                match sink.context.send_publish(subject.clone(), message).await {
                    Ok(acknowledgement) if fence.careful => {
                        let receipt = fence.land(sink, acknowledgement, &subject).await;
                        expected = fence.last;
                        Err(receipt)
                    }
                    Ok(acknowledgement) => {
                        expected += 1;
                        Ok(acknowledgement)
                    }
                    Err(error) => Err(sink.trouble(error, &subject).await),
                }
            }
        };
        if sent.as_ref().is_err_and(|receipt| *receipt != Receipt::Landed) {
            closed.extend(parcel.key.as_deref());
        }
        let down = matches!(sent, Err(Receipt::Down(_)));
        flying.push((subject, sent));
        if down {
            break;
        }
    }
    let mut receipts = Vec::with_capacity(parcels.len());
    for (subject, sent) in flying {
        receipts.push(match sent {
            Err(receipt) => receipt,
            Ok(acknowledgement) => fence.land(sink, acknowledgement, &subject).await,
        });
    }
    receipts.resize(parcels.len(), Receipt::Unsent);
    receipts
}

impl Fence {
    async fn land(&mut self, sink: &NatsSink, acknowledgement: PublishAckFuture, subject: &str) -> Receipt {
        match acknowledgement.await {
            Ok(landed) => {
                self.last = self.last.max(landed.sequence);
                self.careful &= landed.duplicate;
                Receipt::Landed
            }
            Err(error) => sink.trouble(error, subject).await,
        }
    }
}

fn message(parcel: &Parcel) -> Result<PublishMessage, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in parcel.headers.iter() {
        if name.starts_with(SERVERS_OWN) {
            return Err(format!("its header `{name}` would be an order to the server"));
        }
        match name {
            Cow::Borrowed(name) => headers.append(HeaderName::from_static(name), value),
            Cow::Owned(name) => headers.append(name.as_str(), value),
        }
    }
    headers.insert(HeaderName::from_static("content-type"), parcel.content_type.as_str());
    Ok(PublishMessage::build()
        .headers(headers)
        .message_id(parcel.id.to_string())
        .payload(parcel.body.clone()))
}

/// Whether a stream's subject can match something below the prefix.
fn may_meet(subject: &str, prefix: &str) -> bool {
    let mut ours = prefix.split('.').filter(|part| !part.is_empty());
    for theirs in subject.split('.') {
        match (theirs, ours.next()) {
            (">", _) | (_, None) => return true,
            ("*", Some(_)) => {}
            (theirs, Some(ours)) if theirs == ours || ours == LANE => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_may_take_our_subjects_are_told_from_others() {
        for (subject, prefix) in
            [("orders.>", ""), (">", "shop"), ("shop.>", "shop"), ("shop.*", "shop"), ("*.orders", "shop")]
        {
            assert!(may_meet(subject, prefix), "{subject} {prefix}");
        }
        for (subject, prefix) in [("other.>", "shop"), ("shop", "shop"), ("shop.a", "shop.b")] {
            assert!(!may_meet(subject, prefix), "{subject} {prefix}");
        }
    }

    #[test]
    fn a_full_account_is_no_fault_of_a_message() {
        // G-44
        let said = |code: u32, err_code: u32| {
            let said = serde_json::json!({ "code": code, "err_code": err_code, "description": "no" });
            refusal(&serde_json::from_value(said).unwrap())
        };
        assert!(matches!(said(400, 10002), Receipt::Down(_)), "the limits of an account");
        assert!(matches!(said(429, 0), Receipt::Down(_)));
        assert!(matches!(said(400, 10054), Receipt::Refused(_)), "larger than the stream takes");
        assert!(matches!(said(503, 10077), Receipt::Failed { .. }), "the limits of a stream");
    }
}
