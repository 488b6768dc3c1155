//! Stores against real databases.

// A test that cannot go on says so where it stands.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
