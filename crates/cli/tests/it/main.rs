//! End-to-end and crash tests.

mod arrows;
