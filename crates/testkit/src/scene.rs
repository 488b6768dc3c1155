//! A shop that charges cards: what every case is about.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::claim::{Claim, Request};
use semel_core::fingerprint::{Fingerprinter, HashKey, Print};
use semel_core::record::{Record, Recovery, State, Terms};
use semel_core::verbs::{
    Change, Complete, Completion, Finding, MarkUnknown, Purge, Release, Renew, Renewal, Settle, Settler,
    Witness,
};
use semel_core::{EffectStore, Holder, Lease, Nonce, Operation, OperationId, Scope, Token};

use crate::Rig;

/// In microseconds.
pub(crate) const MINUTE: i64 = 60_000_000;
pub(crate) const HOUR: i64 = 60 * MINUTE;
pub(crate) const DAY: i64 = 24 * HOUR;

/// The terms of every claim here. All are far longer than a test takes, so that a store whose
/// clock also runs by itself answers the same.
pub(crate) const LEASE: i64 = 10 * MINUTE;
pub(crate) const RUN_MAX: i64 = 30 * MINUTE;
pub(crate) const TTL: i64 = DAY;
pub(crate) const RETRY_WINDOW: i64 = 8 * HOUR;

/// The recoveries, all of them.
pub(crate) const RECOVERIES: [Recovery; 3] = [Recovery::Rerun, Recovery::Hold, Recovery::Ask];

pub(crate) fn micros(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

pub(crate) fn terms(recovery: Recovery) -> Terms {
    Terms {
        recovery,
        lease: micros(LEASE),
        run_max: micros(RUN_MAX),
        ttl: micros(TTL),
        retry_window: micros(RETRY_WINDOW),
    }
}

/// An operation of the shop.
pub(crate) fn operation(key: &str) -> Arc<Operation> {
    operation_in("shop", Some("alice"), "charge", key)
}

pub(crate) fn operation_in(namespace: &str, tenant: Option<&str>, route: &str, key: &str) -> Arc<Operation> {
    let scope = match tenant {
        Some(tenant) => Scope::new(namespace, tenant, route),
        None => Scope::shared(namespace, route),
    };
    let scope = scope.expect("the parts of the scope are usable");
    Arc::new(Operation::new(scope, key.parse().expect("the key is usable")))
}

/// The print of a JSON body. Stores keep prints and compare digests; whose key made them is not
/// their business, so the suite brings its own.
pub(crate) fn print(body: &str) -> Print {
    prints(&[1]).of_json(body.as_bytes()).current().clone()
}

pub(crate) fn prints(versions: &[u32]) -> Fingerprinter {
    let keys = versions.iter().map(|version| HashKey::new(*version, [*version as u8; 32]));
    Fingerprinter::new(keys.collect()).expect("the versions differ")
}

/// A claim with a nonce of its own.
pub(crate) fn request(operation: &Arc<Operation>, body: &str, recovery: Recovery) -> Request {
    Request {
        operation: operation.clone(),
        nonce: Nonce::random(),
        print: print(body),
        terms: terms(recovery),
        subject: None,
    }
}

/// The body most cases charge with.
pub(crate) const COFFEE: &str = r#"{"amount": 350, "currency": "eur"}"#;

/// A rig with short words for what cases do to its store. Every answer must come.
#[derive(Clone)]
pub(crate) struct Shop(pub(crate) Arc<dyn Rig>);

impl Shop {
    pub(crate) fn store(&self) -> Arc<dyn EffectStore> {
        self.0.store()
    }

    pub(crate) fn shift(&self, micros: i64) {
        self.0.shift_clock(micros);
    }

    /// The least the clock must be moved to be surely on the other side of a deadline.
    pub(crate) fn edge(&self) -> i64 {
        if self.0.clock_stands() { 1 } else { MINUTE }
    }

    pub(crate) async fn claim(&self, request: &Request) -> Claim {
        self.store().claim(request).await.expect("a claim is answered")
    }

    /// Claims for coffee, and must get the lease.
    pub(crate) async fn grant(&self, operation: &Arc<Operation>, recovery: Recovery) -> Lease {
        granted(self.claim(&request(operation, COFFEE, recovery)).await)
    }

    /// Claims for coffee, whatever comes.
    pub(crate) async fn ask(&self, operation: &Arc<Operation>, recovery: Recovery) -> Claim {
        self.claim(&request(operation, COFFEE, recovery)).await
    }

    pub(crate) async fn renew(&self, holder: Holder) -> Renewal {
        self.store().renew(&Renew { holder, lease: micros(LEASE) }).await.expect("a renewal is answered")
    }

    pub(crate) async fn complete(&self, holder: Holder, outcome: impl Into<Bytes>) -> Completion {
        let complete = Complete { holder, outcome: outcome.into(), ttl_min: None };
        self.store().complete(&complete).await.expect("a completion is answered")
    }

    pub(crate) async fn release(&self, holder: Holder) -> Change {
        self.store().release(&Release { holder }).await.expect("a release is answered")
    }

    pub(crate) async fn report_unknown(&self, holder: Holder) -> Change {
        self.mark(Witness::Holder(holder)).await
    }

    pub(crate) async fn report_lapse(&self, operation: OperationId, token: Token) -> Change {
        self.mark(Witness::Lapse { operation, token }).await
    }

    async fn mark(&self, witness: Witness) -> Change {
        let mark = MarkUnknown { witness, note: "the answer was lost".into() };
        self.store().mark_unknown(&mark).await.expect("a mark is answered")
    }

    pub(crate) async fn settle(&self, settle: &Settle) -> Change {
        self.store().settle(settle).await.expect("a settlement is answered")
    }

    pub(crate) async fn purge(&self, operation: OperationId) -> Change {
        let purge = Purge { operation, nonce: Nonce::random(), note: "asked to".into() };
        self.store().purge(&purge).await.expect("a purge is answered")
    }

    pub(crate) async fn get(&self, operation: OperationId) -> Option<Record> {
        self.store().get(operation).await.expect("a record can be read")
    }

    pub(crate) async fn record(&self, operation: OperationId) -> Record {
        self.get(operation).await.expect("there is a record")
    }

    pub(crate) async fn state(&self, operation: OperationId) -> Option<State> {
        self.get(operation).await.map(|record| record.state)
    }

    /// Sweeps until there is nothing more to do; the number deleted.
    pub(crate) async fn sweep(&self) -> u64 {
        let mut deleted = 0;
        loop {
            let report = self.store().sweep(64, micros(7 * DAY)).await.expect("a sweep is answered");
            deleted += report.deleted;
            if !report.more {
                return deleted;
            }
        }
    }

    /// An unknown operation, by its holder's own word.
    pub(crate) async fn unknown(&self, operation: &Arc<Operation>, recovery: Recovery) -> Lease {
        let lease = self.grant(operation, recovery).await;
        assert_eq!(self.report_unknown(lease.holder).await, Change::Made);
        lease
    }

    /// A completed operation.
    pub(crate) async fn completed(&self, operation: &Arc<Operation>, outcome: &'static str) -> Lease {
        let lease = self.grant(operation, Recovery::Hold).await;
        assert_eq!(self.complete(lease.holder, outcome).await, Completion::Stored);
        lease
    }
}

pub(crate) fn granted(claim: Claim) -> Lease {
    match claim {
        Claim::Granted(lease) => lease,
        other => panic!("the claim should be granted, not {other:?}"),
    }
}

/// An operator's settlement.
pub(crate) fn settled_by_operator(lease: &Lease, finding: Finding) -> Settle {
    Settle {
        operation: lease.holder.operation,
        token: lease.holder.token,
        nonce: Nonce::random(),
        finding,
        by: Settler::Operator("ops".into()),
        note: "seen at the bank".into(),
    }
}

pub(crate) fn is_refused(change: Change) -> bool {
    matches!(change, Change::Refused(_))
}

/// Whether Semel's long tests were asked for.
pub(crate) fn long() -> bool {
    std::env::var("SEMEL_TEST_LONG").is_ok_and(|value| value == "1")
}
