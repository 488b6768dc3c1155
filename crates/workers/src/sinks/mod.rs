//! Where a relay publishes to.
//!
//! A [`Sink`] is the connection a relay has to a broker; a [`Line`] is one lane's use of it. A sink says
//! truthfully what became of each message and decides nothing: how often something is tried again, and
//! when it is given up, is the relay's business. Each is a file here, and a feature.
//!
//! What every sink keeps:
//!
//! - [`Receipt::Landed`] is said only of what the broker has acknowledged, as durably as it is set up to.
//! - A message is never sent while an earlier one of its key is unanswered or has failed, unless the broker
//!   itself would refuse it then.
//! - The message's id is in the field by which the broker, or its consumers, tell copies apart.

mod address;
mod headers;
#[cfg(feature = "http")]
mod http;
mod in_order;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
mod parcel;
mod stdout;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use semel_core::outbox::{Facts, Position, Term};

pub use address::{Address, open};
pub use headers::Headers;
#[cfg(feature = "http")]
pub use http::HttpSink;
pub use in_order::in_order;
#[cfg(feature = "kafka")]
pub use kafka::KafkaSink;
#[cfg(feature = "nats")]
pub use nats::NatsSink;
pub use parcel::{Format, Parcel, Stamp};
pub use stdout::StdoutSink;

/// An answer on its way.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a sink is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name, for people and metrics. No address: that may hold a password.
    pub name: &'static str,
    /// How it tells copies of a message apart.
    pub dedup: Dedup,
    /// How CloudEvents attributes are named in its headers.
    pub attribute_prefix: &'static str,
}

/// How long a copy of a message is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// What landed is known exactly, however late somebody asks.
    Exact,
    /// The sink drops copies for so long.
    Window(Duration),
    /// The sink passes the id on; who receives it must tell copies apart.
    Receiver,
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// The sink has it.
    Landed,
    /// The sink will never take it as it is.
    Refused(String),
    /// Not this time. It may have landed all the same.
    Failed {
        /// Why, for people.
        reason: String,
        /// How long the sink wants to be left alone with it.
        after: Option<Duration>,
    },
    /// It was not sent: an earlier one of its key has not landed.
    Unsent,
    /// The sink cannot be reached. It may have landed all the same.
    Down(String),
    /// Somebody else holds the lane, as the sink knows.
    Fenced,
}

/// Why a sink cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// It does not answer, or not now. Later may work.
    #[error("{0}")]
    Down(String),
    /// It will not work until somebody changes something: an address, a setting, credentials.
    #[error("{0}")]
    Unusable(String),
    /// Somebody else holds the lane, as the sink knows.
    #[error("somebody else publishes this lane")]
    Fenced,
}

/// Messages to publish, in the order of the outbox.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The messages.
    pub parcels: &'a [Parcel],
    /// How far the lane will have come once all of them have landed; only for lines that are
    /// [atomic](Line::is_atomic).
    pub position: Option<&'a Position>,
}

/// A lane's way into a sink.
pub trait Line: Send {
    /// Whether a batch lands whole and together with its position, or not at all. If not whole, the
    /// receipts name what is in the way, and the rest is [`Receipt::Unsent`].
    fn is_atomic(&self) -> bool;

    /// Publishes, and says what became of each message: one receipt per parcel, in the same order.
    ///
    /// # Cancellation
    /// What was on its way may land or not; a later call begins anew.
    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>>;
}

/// What came of opening a line.
pub struct Opened {
    /// The line.
    pub line: Box<dyn Line>,
    /// How far the lane has come, if the sink knows better than the outbox.
    pub landed: Option<Position>,
}

/// A place to publish to. It is shared by all lanes.
pub trait Sink: Send + Sync + 'static {
    /// What it is.
    fn about(&self) -> About;

    /// Opens the line of a lane that was just taken, and shuts out whoever had it before, if the sink can.
    fn open(&self, outbox: &Facts, term: Term) -> Answer<'_, Result<Opened, Trouble>>;
}

impl fmt::Display for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Window(window) => write!(f, "{window:?}"),
            Self::Receiver => f.write_str("by the receiver"),
        }
    }
}
