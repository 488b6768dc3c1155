//! `semel verify`: proves or breaks the idempotency of any HTTP API, from outside.
//!
//! It sends one request again and again, in every way in which retries come, and counts what happened.
//! A check plans a scenario, the runner plays it, the check
//! judges what was seen, and the scorecard says so in every form people and machines read.

mod checks;
mod json;
mod profile;
mod runner;
mod scenario;
mod scorecard;
mod setup;
mod shrink;
mod template;
mod wire;
