//! End-to-end and crash tests.

mod arrows;
mod binary;
mod crash;
mod engines;
mod reconcile;
