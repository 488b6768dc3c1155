//! The layer, seen from outside: as a plain tower service, in axum, and under hyper.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod frameworks;
mod log;
mod order;
mod outage;
mod replay;
mod running;
mod seen;
mod verdicts;
mod world;
