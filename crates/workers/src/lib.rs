//! The parts of Semel that run for as long as a service does.
//!
//! [`Recoverer`] notices leases that lapsed and finds out what became of them; [`Sweeper`] deletes
//! what has expired. [`Relay`] publishes what is in an outbox, to a [sink](sinks); a [`consumer`]
//! applies the messages of a broker, from a [source](sources), once each. All work over any store, in any number of
//! processes at once: every step they take is one fenced verb of the store.

pub mod consumer;
mod crash;
#[cfg(feature = "kafka")]
mod kafka;
mod patience;
mod recoverer;
pub mod relay;
pub mod sinks;
pub mod sources;
mod sweeper;

pub use recoverer::{Ask, Question, Recoverer, Reply, Report};
pub use relay::Relay;
pub use sweeper::Sweeper;
