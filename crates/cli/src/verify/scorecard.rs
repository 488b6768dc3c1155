//! What was found: one line per check, and all that is needed to believe it.

use std::time::{Duration, SystemTime};

use super::scenario::{Scenario, Seen};

/// The result of one run of `semel verify`.
#[derive(Clone, Debug)]
pub(crate) struct Scorecard {
    /// `POST http://127.0.0.1:8080/payments`, without query and credentials.
    pub(crate) target: String,
    pub(crate) profile: String,
    /// The same seed plays the same scenarios.
    pub(crate) seed: u64,
    pub(crate) started: SystemTime,
    pub(crate) took: Duration,
    pub(crate) requests: u64,
    pub(crate) findings: Vec<Finding>,
}

/// A check as it is listed: the same for every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// `replay`, `race`, `cut-in-head`: for `--only`, and for reports.
    pub(crate) id: &'static str,
    /// `Replay`, `Race`, `Key`: what it is shown under.
    pub(crate) family: &'static str,
    /// The rules it asks for, by number: `G-14`.
    pub(crate) rules: &'static [&'static str],
    /// What must be true, as a sentence.
    pub(crate) must: &'static str,
}

/// What one check found.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) about: About,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    /// The last scenario played for it, after shrinking if it failed.
    pub(crate) scenario: Scenario,
    /// What was seen in it.
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail {
        /// What is wrong with the service, by one word that does not change: `not-atomic`, `no-fingerprint`.
        cause: &'static str,
        /// What was seen, in a sentence: `two of 8 simultaneous requests took effect`.
        what: String,
        /// What usually makes it so, and what to do.
        advice: &'static str,
    },
    /// Nothing can be said, and why: `give --count-url to count effects`.
    NotShown(String),
}

impl Scorecard {
    /// How many passed, failed, and were not shown.
    pub(crate) fn totals(&self) -> (usize, usize, usize) {
        let count =
            |is: fn(&Verdict) -> bool| self.findings.iter().filter(|found| is(&found.verdict)).count();
        (
            count(|verdict| *verdict == Verdict::Pass),
            count(|verdict| matches!(verdict, Verdict::Fail { .. })),
            count(|verdict| matches!(verdict, Verdict::NotShown(_))),
        )
    }
}
