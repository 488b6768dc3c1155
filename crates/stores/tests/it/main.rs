//! Stores against real databases.

// A test that cannot go on says so where it stands.
#![allow(clippy::unwrap_used)]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod crashes;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod scene;
#[cfg(feature = "sqlite")]
mod sqlite;
