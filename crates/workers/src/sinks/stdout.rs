//! One line of JSON per message, on standard output or wherever else lines can go.

use std::io::{self, Write};
use std::sync::mpsc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_core::outbox::{Facts, Term};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{About, Answer, Batch, Dedup, Line, Opened, Parcel, Receipt, Sink, Trouble};

/// Batches waiting for the writing thread.
const WAITING_MAX: usize = 16;

struct Text {
    bytes: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

/// Writes lines. A thread of its own does it, so that a pipe that does not take them holds nothing else up.
pub struct StdoutSink {
    queue: mpsc::SyncSender<Text>,
}

struct StdoutLine {
    queue: mpsc::SyncSender<Text>,
}

impl StdoutSink {
    /// To standard output.
    pub fn new() -> Self {
        Self::to(io::stdout())
    }

    /// To something else.
    pub fn to(mut out: impl Write + Send + 'static) -> Self {
        let (queue, texts) = mpsc::sync_channel::<Text>(WAITING_MAX);
        std::thread::spawn(move || {
            for Text { bytes, written } in texts {
                let _ = written.send(out.write_all(&bytes).and_then(|()| out.flush()));
            }
        });
        Self { queue }
    }
}

impl Default for StdoutSink {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for StdoutSink {
    fn about(&self) -> About {
        About { name: "stdout", dedup: Dedup::Receiver, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        let line = Box::new(StdoutLine { queue: self.queue.clone() });
        Box::pin(async move { Ok(Opened { line, landed: None }) })
    }
}

impl Line for StdoutLine {
    fn is_atomic(&self) -> bool {
        false
    }

    /// All or, as far as anybody knows, nothing: half a batch that was written comes again.
    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        let bytes = batch.parcels.iter().flat_map(|parcel| line(parcel).into_bytes()).collect();
        let (written, answer) = oneshot::channel();
        let sent = self.queue.try_send(Text { bytes, written });
        Box::pin(async move {
            let receipt = match (sent, answer.await) {
                (Ok(()), Ok(Ok(()))) => Receipt::Landed,
                (Ok(()), Ok(Err(error))) => Receipt::Down(format!("the output takes no lines: {error}")),
                (Ok(()), Err(_)) => Receipt::Down("the output is closed".into()),
                (Err(_), _) => Receipt::Down("the output does not take its lines fast enough".into()),
            };
            vec![receipt; batch.parcels.len()]
        })
    }
}

fn line(parcel: &Parcel) -> String {
    let mut headers: Map<String, Value> = Map::new();
    for (name, value) in parcel.headers.iter() {
        headers.insert(name.to_string(), value.into());
    }
    let mut line = serde_json::json!({
        "id": parcel.id.to_string(),
        "topic": parcel.topic.as_str(),
        "key": parcel.key,
        "content_type": parcel.content_type,
        "headers": headers,
    });
    match std::str::from_utf8(&parcel.body) {
        Ok(text) => line["payload"] = text.into(),
        Err(_) => line["payload_base64"] = STANDARD.encode(&parcel.body).into(),
    }
    format!("{line}\n")
}
