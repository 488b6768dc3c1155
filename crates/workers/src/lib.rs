//! The parts of Semel that run for as long as a service does.
//!
//! [`Recoverer`] notices leases that lapsed and finds out what became of them; [`Sweeper`] deletes
//! what has expired. Both work over any store, in any number of processes at once: every step they
//! take is one fenced verb of the store. A [`consumer`] applies the messages of a broker once each.

pub mod consumer;
mod crash;
mod patience;
mod recoverer;
pub mod sources;
mod sweeper;

pub use recoverer::{Ask, Question, Recoverer, Reply, Report};
pub use sweeper::Sweeper;
