//! Named places where a test may kill the process, to see what a crash there leaves behind.
//!
//! `SEMEL_CRASH_AT` names the place, `SEMEL_CRASH_AFTER` how many times it is passed before. Release builds
//! contain none of this.

/// Ends the process here, without unwinding or flushing, if a test asked for it.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PLACE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("SEMEL_CRASH_AT").ok());
    static PASSES: LazyLock<AtomicU64> = LazyLock::new(|| {
        let after = std::env::var("SEMEL_CRASH_AFTER").ok().and_then(|text| text.parse().ok());
        AtomicU64::new(after.unwrap_or(0))
    });
    if PLACE.as_deref() == Some(name)
        && PASSES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
    {
        std::process::abort();
    }
}

/// Nothing, in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_name: &str) {}
