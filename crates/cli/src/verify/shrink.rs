//! Makes a failing scenario smaller, so that a person can follow it.
//!
//! Every try has fresh tags and keys: what failed before must not help it to fail again.

use std::time::{Duration, Instant};

use super::checks::{Base, Check};
use super::runner::Runner;
use super::scenario::{Scenario, Seen};
use super::scorecard::Verdict;

/// Tries for one size: a race is not lost every time.
const TRIES: usize = 3;
/// A scenario that takes longer than this is tried once per size.
const SLOW: Duration = Duration::from_secs(10);
/// Tries in all.
const TRIES_MAX: usize = 12;

/// Halves the size for as long as the same thing goes wrong. Gives the smallest that did.
pub(super) async fn smallest(
    runner: &mut Runner<'_>,
    check: &Check,
    base: &Base,
    size: usize,
    mut nth: u64,
    failed: (Verdict, Scenario, Seen),
) -> (Verdict, Scenario, Seen) {
    let mut best = failed;
    let mut tries = 0;
    let mut next = size / 2;
    'smaller: while next >= check.smallest && tries < TRIES_MAX {
        for _ in 0..TRIES.min(TRIES_MAX - tries) {
            tries += 1;
            nth += 1;
            let began = Instant::now();
            // A budget that is spent ends it, and what was found stays found.
            let Ok(found) = runner.try_out(check, base, next, nth).await else { break 'smaller };
            if cause(&found.0).is_some() && cause(&found.0) == cause(&best.0) {
                best = found;
                next /= 2;
                continue 'smaller;
            }
            if began.elapsed() > SLOW {
                break;
            }
        }
        break;
    }
    best
}

fn cause(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Fail { cause, .. } => Some(cause),
        _ => None,
    }
}
