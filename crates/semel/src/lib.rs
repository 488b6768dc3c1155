//! A retry must not happen twice.
//!
//! This is the crate services add. It re-exports the semantics ([`Once`], [`Policy`], the
//! [`EffectStore`] contract), the stores by feature, and the tasks that run beside a service
//! ([`Recoverer`], [`Sweeper`], [`Relay`]). With the feature `http` there is the tower layer too, and with `axum` its
//! extractor. Everything is explained where it is defined; start with [`Once::run`].
//!
//! ```
//! # #[cfg(all(feature = "sqlite", feature = "tokio"))]
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("semel.db");
//! use std::sync::Arc;
//! use semel::{Once, Outcome, Policy, Scope, SqliteStore, runtime::Tokio};
//!
//! let store = Arc::new(SqliteStore::open(&path)?);
//! let once = Once::new(store, Arc::new(Tokio::new()));
//! let fingerprint = once.fingerprinter().await?.of_json(br#"{"amount": 2000}"#);
//! let scope = Scope::new("shop", "customer-42", "charge")?;
//! let answer = once
//!     .run(scope, "order-1042-payment".parse()?, fingerprint, &Policy::default(), async |op| {
//!         Outcome::text(format!("charged with provider key {}", op.derive("charge", 1)))
//!     })
//!     .await?;
//! println!("{:?}: {:?}", answer.origin, answer.outcome.body_bytes());
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "sqlite", feature = "tokio")))]
//! # fn main() {}
//! ```

pub use semel_core::*;
#[cfg(feature = "http")]
pub use semel_http as http;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use semel_stores as stores;
#[cfg(feature = "mysql")]
pub use semel_stores::mysql::MysqlStore;
#[cfg(feature = "postgres")]
pub use semel_stores::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use semel_stores::sqlite::SqliteStore;
pub use semel_workers::{Ask, Question, Recoverer, Relay, Reply, Sweeper, consumer, relay, sinks, sources};
