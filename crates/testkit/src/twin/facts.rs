//! Answers and records as flat lists, so that tokens and times can be translated one by one.

use std::fmt::Debug;

use semel_core::claim::Claim;
use semel_core::clock::Timestamp;
use semel_core::verbs::{Change, Completion, Renewal, Stale};
use semel_core::{Lease, Record, Token};

use super::Reply;

/// One comparable thing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Text(String),
    Token(Token),
    Time(Timestamp),
}

type Facts = Vec<(String, Fact)>;

fn text(facts: &mut Facts, name: &str, value: impl Debug) {
    facts.push((name.to_owned(), Fact::Text(format!("{value:?}"))));
}

fn token(facts: &mut Facts, name: &str, value: Token) {
    facts.push((name.to_owned(), Fact::Token(value)));
}

fn time(facts: &mut Facts, name: &str, value: Timestamp) {
    facts.push((name.to_owned(), Fact::Time(value)));
}

/// What an answer says.
pub(super) fn of_reply(reply: &Reply) -> Facts {
    let mut facts = Vec::new();
    match reply {
        Reply::Claim(claim) => of_claim(&mut facts, claim),
        Reply::Renewal(Renewal::Kept { until }) => time(&mut facts, "kept until", *until),
        Reply::Renewal(Renewal::Lost(stale)) => of_stale(&mut facts, "lost", stale),
        Reply::Completion(Completion::Stored) => text(&mut facts, "completion", "stored"),
        Reply::Completion(Completion::Refused(stale)) => of_stale(&mut facts, "refused", stale),
        Reply::Change(Change::Made) => text(&mut facts, "change", "made"),
        Reply::Change(Change::Refused(stale)) => of_stale(&mut facts, "refused", stale),
        Reply::Subject(report) => text(&mut facts, "subject", report),
        Reply::Listed(found) => text(&mut facts, "listed", found),
    }
    facts
}

fn of_claim(facts: &mut Facts, claim: &Claim) {
    match claim {
        Claim::Granted(Lease { holder, attempt, until, granted }) => {
            text(facts, "granted", (holder.operation, holder.nonce, attempt, granted));
            token(facts, "token", holder.token);
            time(facts, "until", *until);
        }
        Claim::InFlight { since, until } => {
            time(facts, "in flight since", *since);
            time(facts, "until", *until);
        }
        Claim::Completed { outcome, at } => {
            text(facts, "outcome", outcome);
            time(facts, "completed at", *at);
        }
        Claim::Unknown { since, recovery } => {
            text(facts, "recovery", recovery);
            time(facts, "unknown since", *since);
        }
        Claim::Purged { until } => time(facts, "purged until", *until),
        Claim::WentBack { held } => token(facts, "went back below", *held),
        Claim::Mismatch { .. } | Claim::OtherVersion { .. } | Claim::Withdrawn => text(facts, "claim", claim),
    }
}

fn of_stale(facts: &mut Facts, name: &str, stale: &Stale) {
    text(facts, name, (stale.state, stale.evidence_kept));
    if let Some(newest) = stale.token {
        token(facts, "newest", newest);
    }
}

/// What a record says.
pub(super) fn of_record(record: &Record) -> Facts {
    let mut facts = Vec::new();
    let it = &mut facts;
    text(it, "operation", &record.operation);
    text(it, "state", record.state);
    token(it, "token", record.token);
    text(it, "nonce", record.nonce);
    text(it, "print", (record.print.version, record.print.digest, record.print.paths.encode()));
    text(it, "terms", record.terms);
    text(it, "attempts", record.attempts);
    time(it, "created at", record.created_at);
    time(it, "attempt at", record.attempt_at);
    time(it, "lease until", record.lease_until);
    if let Some(at) = record.settled_at {
        time(it, "settled at", at);
    }
    text(it, "subject", &record.subject);
    text(it, "outcome", &record.outcome);
    text(it, "events dropped", record.history.dropped());
    for event in record.history.events() {
        // A note may name a token in its own numbering.
        let note: String = event.note.chars().filter(|c| !c.is_ascii_digit()).collect();
        text(it, "event", (event.kind, event.nonce, note, &event.evidence));
        time(it, "event at", event.at);
        token(it, "event token", event.token);
    }
    facts
}
