//! A store and the reference beside it, fed the same deeds.
//!
//! The reference is a map and the transition functions, nothing else. A store numbers its tokens
//! and keeps its clock as it likes; both are translated before answers and records are compared.

mod deed;
mod facts;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::claim::Claim;
use semel_core::clock::Timestamp;
use semel_core::store::Filter;
use semel_core::{OperationId, Token};

pub(crate) use deed::{Deed, Reply, walk};
pub(crate) use reference::Reference;

use crate::Rig;
use crate::scene::MINUTE;
use facts::{Fact, of_record, of_reply};

/// How many calls a store is asked at once where they do not touch each other.
const ABREAST: usize = 32;

/// The pair. The reference's tokens are the names under which callers speak of attempts.
pub(crate) struct Twin {
    rig: Arc<dyn Rig>,
    pub(crate) reference: Reference,
    /// The store's token for each of the reference's.
    tokens: BTreeMap<Token, Token>,
    start: i64,
    slack: i64,
}

impl Twin {
    pub(crate) async fn new(rig: Arc<dyn Rig>, reference: Reference) -> Self {
        let page = rig
            .store()
            .list(&Filter::default(), Token(0), 1)
            .await
            .expect("a fresh store can be paged through");
        let slack = if rig.clock_stands() { 0 } else { MINUTE };
        Self { rig, reference, tokens: BTreeMap::new(), start: page.now.as_micros(), slack }
    }

    /// Does a deed on both sides, and demands the same answer.
    pub(crate) async fn both(&mut self, deed: &Deed) -> Reply {
        let expected = self.reference.apply(deed);
        self.check(deed, expected).await
    }

    /// The same with deeds about different operations, which the store does side by side.
    pub(crate) async fn both_of_all(&mut self, deeds: &[Deed]) -> Vec<Reply> {
        let expected: Vec<Reply> = deeds.iter().map(|deed| self.reference.apply(deed)).collect();
        let real: Vec<Deed> =
            deeds.iter().map(|deed| deed.clone().with_tokens(&|token| self.real(token))).collect();
        let mut replies = Vec::with_capacity(real.len());
        for some in real.chunks(ABREAST) {
            replies.extend(join_all(some.iter().map(|deed| deed.perform(self.rig.store()))).await);
        }
        for ((deed, expected), real) in deeds.iter().zip(&expected).zip(&replies) {
            self.agree(deed, expected, real);
        }
        expected
    }

    /// Does on the store what the reference has already done, and demands its answer.
    pub(crate) async fn check(&mut self, deed: &Deed, expected: Reply) -> Reply {
        let real = deed.clone().with_tokens(&|token| self.real(token)).perform(self.rig.store()).await;
        self.agree(deed, &expected, &real);
        expected
    }

    fn agree(&mut self, deed: &Deed, expected: &Reply, real: &Reply) {
        if let (Reply::Claim(Claim::Granted(ours)), Reply::Claim(Claim::Granted(theirs))) = (expected, real) {
            let known = self.tokens.insert(ours.holder.token, theirs.holder.token);
            assert!(known.is_none_or(|known| known == theirs.holder.token), "one attempt has one token");
        }
        self.compare(&of_reply(expected), &of_reply(real), &format!("the answer to {deed:?}"));
    }

    /// Moves both clocks.
    pub(crate) fn shift(&mut self, micros: i64) {
        self.reference.shift(micros);
        self.rig.shift_clock(micros);
    }

    /// Demands that an operation's record is the same on both sides. Expired is as good as absent.
    pub(crate) async fn same_record(&self, id: OperationId) {
        let real = self.rig.store().get(id).await.expect("a record can be read");
        match (self.reference.get(id), real) {
            (None, None) => {}
            (Some(ours), Some(theirs)) => self.compare(&of_record(ours), &of_record(&theirs), "the record"),
            (ours, theirs) => panic!("one side has a record: reference {ours:?}, store {theirs:?}"),
        }
    }

    pub(crate) async fn same_records(&self, ids: &[OperationId]) {
        for some in ids.chunks(ABREAST) {
            join_all(some.iter().map(|id| self.same_record(*id))).await;
        }
    }

    /// Lets the store sweep to the end. What a sweep may do is up to the store's schedule, so the
    /// reference follows, after checking that each record was left, shrunk or deleted rightly.
    pub(crate) async fn sweep(&mut self, limit: u32, unknown_kept: std::time::Duration) {
        loop {
            let report = self.rig.store().sweep(limit, unknown_kept).await.expect("a sweep is answered");
            if !report.more {
                break;
            }
        }
        for id in self.reference.ids() {
            let real = self.rig.store().get(id).await.expect("a record can be read");
            let allowed = self.reference.swept(id, unknown_kept);
            let found = allowed.into_iter().find(|allowed| match (allowed, &real) {
                (None, None) => true,
                (Some(ours), Some(theirs)) => self.differ(&of_record(ours), &of_record(theirs)).is_none(),
                _ => false,
            });
            match found {
                Some(record) => self.reference.set(id, record),
                None => {
                    panic!("a sweep may not leave {real:?} where there was {:?}", self.reference.get(id))
                }
            }
        }
    }

    /// A token neither side ever gave stays what it is, and both refuse it.
    fn real(&self, token: Token) -> Token {
        self.tokens.get(&token).copied().unwrap_or(token)
    }

    fn compare(&self, ours: &[(String, Fact)], theirs: &[(String, Fact)], what: &str) {
        if let Some(difference) = self.differ(ours, theirs) {
            panic!("{what} differs: {difference}\nreference: {ours:#?}\nstore: {theirs:#?}");
        }
    }

    fn differ(&self, ours: &[(String, Fact)], theirs: &[(String, Fact)]) -> Option<String> {
        if ours.len() != theirs.len() {
            return Some(format!("{} facts against {}", ours.len(), theirs.len()));
        }
        let pairs = ours.iter().zip(theirs);
        pairs.into_iter().find_map(|((name, ours), (other, theirs))| {
            let same = name == other
                && match (ours, theirs) {
                    (Fact::Token(ours), Fact::Token(theirs)) => self.real(*ours) == *theirs,
                    (Fact::Time(ours), Fact::Time(theirs)) => self.near(*ours, *theirs),
                    (ours, theirs) => ours == theirs,
                };
            (!same).then(|| format!("{name}: {ours:?} against {other}: {theirs:?}"))
        })
    }

    fn near(&self, ours: Timestamp, theirs: Timestamp) -> bool {
        let ours = ours.as_micros() - self.reference.start().as_micros();
        let theirs = theirs.as_micros() - self.start;
        ours.abs_diff(theirs) <= self.slack.unsigned_abs()
    }
}
