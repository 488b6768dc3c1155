use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::clock::Timestamp;
use semel_core::record::{self, Moment, Record, Swept, Verb};
use semel_core::store::SubjectPurge;
use semel_core::verbs::Purge;
use semel_core::{OperationId, Token};

use super::{Deed, Reply};

/// A map and the transition functions.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    records: BTreeMap<OperationId, Record>,
    start: Timestamp,
    now: Timestamp,
    token: Token,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let start = Timestamp::from_micros(0);
        Self { records: BTreeMap::new(), start, now: start, token: Token(0) }
    }

    pub(crate) fn start(&self) -> Timestamp {
        self.start
    }

    pub(crate) fn shift(&mut self, micros: i64) {
        self.now = Timestamp::from_micros(self.now.as_micros() + micros);
    }

    pub(crate) fn get(&self, id: OperationId) -> Option<&Record> {
        self.records.get(&id)
    }

    pub(crate) fn ids(&self) -> Vec<OperationId> {
        self.records.keys().copied().collect()
    }

    pub(crate) fn set(&mut self, id: OperationId, record: Option<Record>) {
        match record {
            Some(record) => self.records.insert(id, record),
            None => self.records.remove(&id),
        };
    }

    /// What a sweep may leave of a record: itself if its turn has not come, or what the sweeper decides.
    pub(crate) fn swept(&self, id: OperationId, unknown_kept: Duration) -> Vec<Option<Record>> {
        let Some(record) = self.records.get(&id) else { return vec![None] };
        let mut allowed = vec![Some(record.clone())];
        match record::sweep(record, self.now, unknown_kept) {
            Swept::Gone => allowed.push(None),
            Swept::Shrunk(small) => allowed.push(Some(*small)),
            Swept::Kept(_) => {}
        }
        allowed
    }

    pub(crate) fn apply(&mut self, deed: &Deed) -> Reply {
        match deed {
            Deed::Claim(claim) => Reply::Claim(self.step(claim)),
            Deed::Renew(renew) => Reply::Renewal(self.step(renew)),
            Deed::Complete(complete) => Reply::Completion(self.step(complete)),
            Deed::Release(release) => Reply::Change(self.step(release)),
            Deed::MarkUnknown(mark) => Reply::Change(self.step(mark)),
            Deed::Settle(settle) => Reply::Change(self.step(settle)),
            Deed::Purge(purge) => Reply::Change(self.step(purge)),
            Deed::PurgeSubject { subject, nonce } => {
                let theirs =
                    self.records.values().filter(|record| record.subject.as_deref() == Some(subject));
                let ids: Vec<OperationId> = theirs.map(|record| record.operation.id()).collect();
                let mut report = SubjectPurge::default();
                for operation in ids {
                    let purge = Purge { operation, nonce: *nonce, note: "on request".into() };
                    match self.step(&purge) {
                        semel_core::verbs::Change::Made => report.purged += 1,
                        semel_core::verbs::Change::Refused(_) => report.open += 1,
                    }
                }
                Reply::Subject(report)
            }
            Deed::List { filter, .. } => {
                let matching = self.records.values().filter(|record| filter.matches(record));
                let mut found: Vec<&Record> = matching.collect();
                found.sort_by_key(|record| record.token);
                Reply::Listed(found.iter().map(|record| (record.operation.id(), record.state)).collect())
            }
        }
    }

    fn step<V: Verb>(&mut self, verb: &V) -> V::Answer {
        let fresh = Token(self.token.0 + 1);
        let step = verb.decide(self.records.get(&verb.operation()), Moment { now: self.now, fresh });
        if let Some(record) = step.put {
            if V::TAKES_TOKEN && record.token == fresh {
                self.token = fresh;
            }
            self.records.insert(verb.operation(), record);
        }
        step.answer
    }
}
