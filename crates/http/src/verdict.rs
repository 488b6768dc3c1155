//! What a response means: the outcome, that nothing happened, or that nobody knows.
//!
//! A pure function of the head of the response, with one look at the body for another Semel's refusal.
//! It does not read clocks, stores or routes; the caller gives it the route's releasing statuses.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use semel_core::mutant;

use crate::coding;
use crate::hints::{Fate, Hints};
use crate::problem::TYPE_PREFIX;

/// The meaning of one response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the attempt ended.
    pub ended: Ended,
    /// Whether the body is kept; the service may have asked not to.
    pub keep_body: bool,
    /// How long the service asks for the operation to be remembered at least, counted from its creation.
    pub keep_longer: Option<Duration>,
    /// The service said that it decided: a body that breaks off does not change that.
    pub decided: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This is the outcome, error or not.
    Done,
    /// Certainly nothing happened; the next attempt may run.
    NothingHappened,
    /// It may or may not have happened. The text says why, for people who have to find out.
    Unknown(String),
}

impl Verdict {
    /// Judges the head of a response.
    pub fn of(status: StatusCode, fate: Option<&Fate>, hints: Hints, releasing: &[StatusCode]) -> Self {
        let ended = match fate {
            Some(Fate::NothingHappened) => Ended::NothingHappened,
            Some(Fate::Unknown(why)) => Ended::Unknown(why.clone()),
            None => by_hints(hints).unwrap_or_else(|| by_status(status, releasing)),
        };
        Self {
            decided: hints.decided && ended == Ended::Done,
            ended,
            keep_body: !hints.do_not_keep,
            keep_longer: hints.keep_longer,
        }
    }
}

fn by_hints(hints: Hints) -> Option<Ended> {
    match (hints.nothing_happened, hints.decided) {
        (true, true) => {
            Some(Ended::Unknown("the service said both that it decided and that nothing happened".into()))
        }
        (true, false) => Some(Ended::NothingHappened),
        (false, true) => Some(Ended::Done),
        (false, false) => None,
    }
}

fn by_status(status: StatusCode, releasing: &[StatusCode]) -> Ended {
    if releasing.contains(&status) {
        return Ended::NothingHappened;
    }
    match status.as_u16() {
        _ if mutant::on("doubtful-status-stored") => Ended::Done,
        503 if mutant::on("unavailable-releases") => Ended::NothingHappened,
        // Written by proxies and overloaded servers, before the work, after it, or in the middle of it.
        408 | 425 | 502..=504 | 520..=529 => Ended::Unknown(format!("the service answered {status}")),
        100..=199 => Ended::Unknown(format!("the service answered {status} and ended HTTP there")),
        _ => Ended::Done,
    }
}

/// Longest problem document looked at.
pub(crate) const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Whether a response may be a problem document.
pub(crate) fn may_be_problem(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/problem+json")
}

/// The type of a problem that another Semel answered with, behind this one. It speaks of that Semel's
/// state, not of an outcome, and must never be stored as one.
pub(crate) fn foreign_problem(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    if !may_be_problem(headers) || mutant::on("another-semel-stored") {
        return None;
    }
    let plain = coding::decoded(headers, body, PROBLEM_BYTES_MAX);
    let problem: serde_json::Value = serde_json::from_slice(&plain).ok()?;
    let kind = problem.get("type")?.as_str()?;
    kind.starts_with(TYPE_PREFIX).then(|| kind.chars().take(100).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Hints =
        Hints { nothing_happened: false, decided: false, do_not_keep: false, keep_longer: None };

    fn every_status() -> impl Iterator<Item = StatusCode> {
        (100..=999).map(|code| StatusCode::from_u16(code).unwrap())
    }

    #[test]
    fn every_status_without_a_hint_means_what_the_table_says() {
        // G-16
        for status in every_status() {
            let ended = Verdict::of(status, None, NONE, &[StatusCode::TOO_MANY_REQUESTS]).ended;
            match status.as_u16() {
                429 => assert_eq!(ended, Ended::NothingHappened),
                100..=199 | 408 | 425 | 502 | 503 | 504 | 520..=529 => {
                    assert!(matches!(ended, Ended::Unknown(_)), "{status}");
                }
                _ => assert_eq!(ended, Ended::Done, "{status}"),
            }
        }
    }

    #[test]
    fn statuses_release_only_where_the_route_declares_them() {
        // G-16
        for status in every_status().filter(|status| status.as_u16() >= 400) {
            assert_eq!(Verdict::of(status, None, NONE, &[status]).ended, Ended::NothingHappened, "{status}");
            assert_ne!(Verdict::of(status, None, NONE, &[]).ended, Ended::NothingHappened, "{status}");
        }
    }

    #[test]
    fn a_hint_outweighs_every_status_and_two_contradicting_ones_are_unknown() {
        // G-16
        for status in every_status() {
            let decided = Hints { decided: true, ..NONE };
            let nothing = Hints { nothing_happened: true, ..NONE };
            let both = Hints { decided: true, ..nothing };
            assert_eq!(Verdict::of(status, None, decided, &[status]).ended, Ended::Done);
            assert_eq!(Verdict::of(status, None, nothing, &[]).ended, Ended::NothingHappened);
            assert!(matches!(Verdict::of(status, None, both, &[]).ended, Ended::Unknown(_)));
        }
    }

    #[test]
    fn the_fate_of_a_request_that_got_no_answer_outweighs_everything() {
        // G-16
        let unknown = Fate::Unknown("connection lost".into());
        for status in every_status() {
            for hints in [NONE, Hints { decided: true, ..NONE }, Hints { nothing_happened: true, ..NONE }] {
                let lost = Verdict::of(status, Some(&unknown), hints, &[status]);
                assert_eq!(lost.ended, Ended::Unknown("connection lost".into()));
                assert!(!lost.decided);
                let unsent = Verdict::of(status, Some(&Fate::NothingHappened), hints, &[]);
                assert_eq!(unsent.ended, Ended::NothingHappened);
            }
        }
    }

    #[test]
    fn only_semels_own_problem_types_are_foreign() {
        // G-21
        let mut headers = HeaderMap::new();
        let ours = br#"{"status":409,"type":"urn:semel:problem:in-flight"}"#;
        assert_eq!(foreign_problem(&headers, ours), None, "not declared as a problem");
        headers.insert(header::CONTENT_TYPE, "Application/Problem+JSON; charset=utf-8".parse().unwrap());
        assert_eq!(foreign_problem(&headers, ours).as_deref(), Some("urn:semel:problem:in-flight"));
        assert_eq!(foreign_problem(&headers, br#"{"detail":"urn:semel:problem:in-flight"}"#), None);
        assert_eq!(foreign_problem(&headers, br#"{"type":"https://example.com/no-funds"}"#), None);
        assert_eq!(foreign_problem(&headers, b"not json"), None);
    }
}
