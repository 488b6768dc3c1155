//! Semantics of Semel: an effect happens once, however often it is asked for.
//!
//! Networks lose answers, so clients retry, so every write arrives twice some day. Exactly-once
//! *delivery* does not exist; exactly-once *effect* does: a key names the intent, one attempt gets a
//! lease, its outcome is stored before anybody hears of it, and every retry gets that outcome back.
//! When nobody can tell whether the effect happened, Semel says so instead of guessing.
//!
//! # Any async function, once
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::Arc;
//! use semel_core::{MemoryStore, Once, Origin, Outcome, Policy, Scope};
//! # #[cfg(feature = "tokio")]
//! use semel_core::runtime::Tokio;
//!
//! # #[cfg(feature = "tokio")] {
//! let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
//! let request = br#"{"amount": 2000, "currency": "eur"}"#;
//! let fingerprint = once.fingerprinter().await?.of_json(request);
//! let scope = Scope::new("shop", "customer-42", "charge")?;
//!
//! for expected in [Origin::Fresh, Origin::Replayed] {
//!     let answer = once
//!         .run(scope.clone(), "order-1042-payment".parse()?, fingerprint.clone(), &Policy::default(), async |op| {
//!             // Charge the card here, passing op.derive("charge", 1) as the provider's key.
//!             Outcome::text(format!("charged, provider key {}", op.derive("charge", 1)))
//!         })
//!         .await?;
//!     assert_eq!(answer.origin, expected);
//! }
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # A batch job that is safe to rerun
//!
//! Give every line a key made of durable data, never of the clock or the attempt. A rerun skips the
//! lines that are done, reports those whose outcome is unknown, and runs the rest.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "tokio")] {
//! # use std::sync::Arc;
//! # use std::sync::atomic::{AtomicU32, Ordering};
//! # use semel_core::{MemoryStore, NotDone, Once, Outcome, Policy, Scope, runtime::Tokio};
//! # let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
//! # let payouts = [("inv-1", 100), ("inv-2", 250), ("inv-3", 75)];
//! # let sent = Arc::new(AtomicU32::new(0));
//! let prints = once.fingerprinter().await?;
//! for run in 1..=2 {
//!     for (invoice, cents) in payouts {
//!         let scope = Scope::shared("payroll", "payout")?;
//!         let fingerprint = prints.of_bytes(format!("{invoice} {cents}").as_bytes());
//!         let sent = sent.clone();
//!         let paid = once
//!             .run(scope, invoice.parse()?, fingerprint, &Policy::default(), async move |_op| {
//!                 if run == 1 && invoice == "inv-2" {
//!                     return Err(NotDone::NothingHappened("bank closed".into())); // tried again by the next run
//!                 }
//!                 sent.fetch_add(1, Ordering::Relaxed);
//!                 Ok(Outcome::text(format!("paid {cents}")))
//!             })
//!             .await?;
//!         println!("run {run}: {invoice}: {:?}", paid.origin);
//!     }
//! }
//! assert_eq!(sent.load(Ordering::Relaxed), 3, "three payouts, two runs");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! [`execute`](Once) is claim → run → store → replay. [`record`], [`claim`] and [`verbs`] are the
//! transition table as pure functions; nothing else may change a record. [`store`] is the contract of a
//! database; [`MemoryStore`] is its reference. [`fingerprint`] tells requests apart. What this crate
//! refuses to know: HTTP, drivers, and which async runtime runs it.

mod admit;
mod answer;
pub mod attempt;
mod backoff;
pub mod claim;
pub mod clock;
mod codec;
mod digest;
pub mod error;
mod execute;
pub mod fence;
pub mod fingerprint;
mod finish;
pub mod history;
pub mod inbox;
pub mod joined;
pub mod key;
pub mod lease;
mod memory;
pub mod message;
#[doc(hidden)]
pub mod mutant;
pub mod operation;
pub mod outbox;
pub mod outcome;
pub mod policy;
mod recall;
pub mod record;
pub mod runtime;
pub mod seal;
pub mod store;
pub mod subject;
mod tally;
pub mod verbs;
mod wait;

pub use answer::{Answer, Ending, NotDone, Origin, Refusal};
pub use attempt::Attempt;
pub use backoff::Backoff;
pub use claim::Claim;
pub use clock::{Clock, SystemClock, Timestamp};
pub use error::Error;
pub use execute::Once;
pub use fingerprint::{Fingerprint, Fingerprinter};
pub use inbox::Inbox;
pub use key::Key;
pub use lease::{Holder, Lease, Nonce, Token};
pub use memory::{MemoryStore, Snapshot};
pub use message::{Message, MessageId, Topic};
pub use operation::{Operation, OperationId, Scope};
pub use outbox::{MemoryOutbox, Outbox};
pub use outcome::Outcome;
pub use policy::Policy;
pub use recall::Recalling;
pub use record::{Record, Recovery, State};
pub use runtime::Runtime;
pub use seal::Keyring;
pub use store::{Capabilities, EffectStore};
pub use subject::{MemorySubjectKeys, SubjectKeys};
pub use tally::Tally;
