//! End-to-end and crash tests.
