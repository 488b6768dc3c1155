//! Durable stores for Semel: one folder and one feature per database.
//!
//! Each keeps the contract of [`semel_core::store`] and passes the same suite. None of them decides
//! anything by itself: what a verb may do is asked of the transition functions in the core.

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod crash;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod migrate;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use migrate::Missing;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use open::plan;
pub use open::{open, open_inbox, open_outbox};
