//! Bodies can be removed; that a key was used cannot, until it expires.

use std::sync::Arc;

use semel_core::claim::{Claim, Request};
use semel_core::history::Kind;
use semel_core::record::{Recovery, State};
use semel_core::store::SubjectPurge;
use semel_core::verbs::{Change, Completion};
use semel_core::{Lease, Nonce};

use crate::Rig;
use crate::scene::{COFFEE, Shop, TTL, granted, is_refused, operation, request};

// G-10
pub(super) async fn a_purge_leaves_a_tombstone_that_still_answers(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("purge-0000000001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    let mut claim = request(&order, COFFEE, Recovery::Hold);
    claim.subject = Some("customer-1".into());
    let lease = granted(shop.claim(&claim).await);
    shop.complete(lease.holder, "a secret").await;
    shop.complete(first.holder, "another secret").await;
    assert_eq!(shop.purge(order.id()).await, Change::Made);
    assert_eq!(shop.purge(order.id()).await, Change::Made, "repeating is harmless");
    let record = shop.record(order.id()).await;
    assert_eq!((record.state, &record.outcome, &record.subject), (State::Tombstone, &None, &None));
    assert!(record.history.events().iter().all(|event| event.evidence.is_none()), "evidence goes too");
    assert!(record.print.paths.is_empty());
    let purges = record.history.events().iter().filter(|event| event.kind == Kind::Purged);
    assert_eq!(purges.count(), 1);
    assert!(matches!(shop.ask(&order, Recovery::Hold).await, Claim::Purged { .. }));
    assert!(matches!(shop.claim(&claim).await, Claim::Purged { .. }), "also to a copy of its own claim");
    let told = shop.complete(lease.holder, "a secret").await;
    assert!(matches!(told, Completion::Refused(_)), "a purged body does not come back");
    assert!(shop.record(order.id()).await.history.events().iter().all(|event| event.evidence.is_none()));
    shop.0.reopen().await;
    assert!(matches!(shop.ask(&order, Recovery::Hold).await, Claim::Purged { .. }));
    shop.shift(TTL);
    assert_eq!(shop.grant(&order, Recovery::Hold).await.attempt, 1);
}

// G-10
pub(super) async fn what_has_not_ended_cannot_be_purged(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let (running, unknown) = (operation("purge-open-00001"), operation("purge-open-00002"));
    shop.grant(&running, Recovery::Rerun).await;
    shop.unknown(&unknown, Recovery::Hold).await;
    for order in [running, unknown] {
        let before = shop.record(order.id()).await;
        assert!(is_refused(shop.purge(order.id()).await), "{:?}", before.state);
        assert_eq!(shop.record(order.id()).await, before);
    }
    assert!(is_refused(shop.purge(operation("purge-none-00001").id()).await));
}

fn about(subject: Option<&str>, key: &str) -> Request {
    Request { subject: subject.map(Into::into), ..request(&operation(key), COFFEE, Recovery::Hold) }
}

// G-10
pub(super) async fn a_purge_by_subject_takes_all_of_it_and_nobody_elses(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let mut leases: Vec<Lease> = Vec::new();
    for n in 0..7 {
        leases.push(granted(shop.claim(&about(Some("müller"), &format!("subject-000000{n}"))).await));
    }
    for lease in &leases[..5] {
        shop.complete(lease.holder, "about müller").await;
    }
    shop.report_unknown(leases[5].holder).await;
    let others = [about(Some("mülle"), "subject-other-1"), about(None, "subject-other-2")];
    for other in &others {
        let lease = granted(shop.claim(other).await);
        shop.complete(lease.holder, "about somebody else").await;
    }
    let (mut purged, mut rounds, nonce) = (0, 0, Nonce::random());
    let last = loop {
        let report = shop
            .store()
            .purge_subject("müller", nonce, "asked to be forgotten", 2)
            .await
            .expect("a purge is answered");
        assert!(report.purged <= 2, "{report:?}");
        purged += report.purged;
        rounds += 1;
        assert!(rounds < 10, "a purge comes to an end");
        if !report.more {
            break report;
        }
    };
    assert_eq!((purged, last.open), (5, 2), "what has not ended is counted");
    for lease in &leases[..5] {
        assert_eq!(shop.state(lease.holder.operation).await, Some(State::Tombstone));
    }
    assert_eq!(shop.state(leases[5].holder.operation).await, Some(State::Unknown));
    assert_eq!(shop.state(leases[6].holder.operation).await, Some(State::InProgress));
    for other in &others {
        assert_eq!(shop.state(other.operation.id()).await, Some(State::Completed));
    }
    let nobody = shop.store().purge_subject("nobody", nonce, "", 10).await.expect("a purge is answered");
    assert_eq!(nobody, SubjectPurge::default());
}
