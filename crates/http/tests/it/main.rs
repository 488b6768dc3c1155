//! The layer, seen from outside: as a plain tower service, in axum, and under hyper.

mod frameworks;
mod order;
mod outage;
mod replay;
mod running;
mod seen;
mod verdicts;
mod world;
