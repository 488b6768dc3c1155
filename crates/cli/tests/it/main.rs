//! End-to-end and crash tests.

mod arrows;
mod binary;
mod config;
mod consume;
mod crash;
mod engines;
mod gateway;
mod keys;
mod languages;
mod reconcile;
mod relay;
mod verify;
mod zoo;
