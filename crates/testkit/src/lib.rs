//! What every store of Semel must do, as tests any backend can run.
//!
//! The author of a new backend implements [`EffectStore`](semel_core::EffectStore), writes a [`Rig`]
//! for it, and puts three lines into a test file:
//!
//! ```text
//! semel_testkit::conformance!(maker());
//! semel_testkit::execution!(maker());
//! #[test] fn interleavings() { semel_testkit::interleavings(maker(), 64) }
//! ```
//!
//! `conformance!` drives the verbs one by one and compares with the reference; `execution!` runs
//! [`Once`](semel_core::Once) over the store while [`FaultyStore`] loses, delays and repeats calls;
//! [`interleavings`] makes random histories and shrinks the ones that differ. [`model`] checks the
//! transition functions themselves, all interleavings within stated bounds, with no store at all.
//! [`outbox`] is the suite of databases that keep an outbox, [`subjects`] that of places of subjects' keys.
//!
//! Nothing here sleeps or reads the machine's clock: time is moved through the rig.

pub mod execution;
mod faulty;
mod interleavings;
mod ledger;
pub mod model;
pub mod outbox;
mod rig;
mod scene;
pub mod subjects;
pub mod suite;
mod twin;

pub use faulty::{Fault, FaultyStore, Plan, Verb};
pub use interleavings::interleavings;
pub use ledger::ledger;
pub use rig::{BoxFuture, Maker, ManualClock, MemoryRig, Rig};
