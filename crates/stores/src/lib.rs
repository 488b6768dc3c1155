//! Durable stores for Semel: one folder and one feature per database.
//!
//! Each keeps the contract of [`semel_core::store`] and passes the same suite. None of them decides
//! anything by itself: what a verb may do is asked of the transition functions in the core.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod crash;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod gather;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod horizon;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod migrate;
#[cfg(feature = "mysql")]
pub mod mysql;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod replace;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod witness;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use migrate::Missing;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use open::plan;
pub use open::{open, open_inbox, open_outbox, open_subject_keys};
