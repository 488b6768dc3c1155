//! Sinks against the servers they are for.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_shared;
#[cfg(feature = "nats")]
mod nats;
mod stdout;

use std::sync::Arc;
use std::time::Duration;

use semel_core::outbox::{Aside, Entry, Facts, Lane, Term};
use semel_core::{MemoryOutbox, Message, Nonce, Outbox};
use semel_workers::sinks::{Batch, Format, Line, Parcel, Receipt, Sink, Stamp};

/// What the environment says; without it the test is skipped, loudly, or fails where engines are required.
#[cfg(any(feature = "nats", feature = "kafka"))]
fn engine(name: &str, variable: &str) -> Option<String> {
    match std::env::var(variable) {
        Ok(value) => {
            semel_testkit::ledger("sinks of the relay", name, 1);
            Some(value)
        }
        Err(_) if std::env::var("SEMEL_TEST_REQUIRE").is_ok_and(|value| value == "1") => {
            panic!("{variable} is not set, and SEMEL_TEST_REQUIRE demands {name}")
        }
        Err(_) => {
            eprintln!("SKIPPED {name}: {variable} is not set; ./test starts a server");
            None
        }
    }
}

/// A name nobody else uses.
fn unique(name: &str) -> String {
    format!("{name}-{}", &Nonce::random().to_string()[..12])
}

fn message(topic: &str, key: &str, text: impl Into<String>) -> Message {
    Message::new(topic.parse().unwrap(), text.into()).key(key)
}

fn facts() -> Facts {
    Facts { engine: "memory", store_id: *Nonce::random().as_bytes(), lanes: 4 }
}

fn term(epoch: u64) -> Term {
    Term { lane: Lane(0), epoch }
}

/// Messages as a relay of this epoch would send them.
fn parcels(sink: &dyn Sink, epoch: u64, messages: &[Message]) -> Vec<Parcel> {
    let stamp = Stamp::new(&facts(), term(epoch), Format::CeBinary, sink.about().attribute_prefix, None);
    let entry = |(message, sequence): (&Message, u64)| {
        stamp.parcel(&Entry { sequence, message: message.clone().into(), tries: 0, behind: false })
    };
    messages.iter().zip(1..).map(entry).collect()
}

async fn line(sink: &dyn Sink, epoch: u64) -> Box<dyn Line> {
    sink.open(&facts(), term(epoch)).await.map(|opened| opened.line).unwrap_or_else(|error| panic!("{error}"))
}

async fn publish(line: &mut dyn Line, parcels: &[Parcel]) -> Vec<Receipt> {
    line.publish(Batch { parcels, position: None }).await
}

/// Waits for a condition, for two minutes at most: every core may be busy.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..1200 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it never came: {what}");
}

/// How many messages wait to be published.
async fn waiting(outbox: &Arc<MemoryOutbox>) -> usize {
    outbox.list(None, 0, 100_000).await.unwrap().len()
}

async fn dead(outbox: &Arc<MemoryOutbox>) -> Vec<(String, String)> {
    let letters = outbox.aside(Some(Aside::Dead), 0, 1000).await.unwrap();
    letters.into_iter().map(|letter| (letter.entry.message.topic.to_string(), letter.reason)).collect()
}
