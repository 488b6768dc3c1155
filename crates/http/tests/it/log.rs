//! What was logged on this test's thread.
//!
//! One subscriber for the whole process: one per test would miss events whose place in the code was first
//! reached by another thread.

use std::cell::RefCell;
use std::io::{Result, Write};
use std::sync::Once;

thread_local! {
    static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Here;

impl Write for Here {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        WRITTEN.with_borrow_mut(|written| written.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Call this before anything is logged.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| tracing_subscriber::fmt().with_writer(|| Here).with_ansi(false).init());
}

/// Everything since the last call.
pub(crate) fn written() -> String {
    String::from_utf8(WRITTEN.take()).unwrap()
}
